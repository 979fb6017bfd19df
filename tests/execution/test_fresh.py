"""Memory that a subject allocates for itself: what the verifier does to it is no work of the subject's."""

import torch

from verifier.execution.host_arithmetic import HostArithmetic
from verifier.execution.poisoned_memory import GUARD_BYTES, fresh_memory


def test_guarding_memory_is_no_arithmetic_of_the_host():
    with fresh_memory("nan"), HostArithmetic() as host:
        made = torch.empty(4), torch.zeros(4), torch.empty(4).new_empty(2)
        assert not made[1].is_pinned()
    assert host.seen == set()


def test_arithmetic_of_the_host_is_seen_beside_it():
    with fresh_memory("nan"), HostArithmetic() as host:
        torch.zeros(4) / 3
    assert host.seen == {"div"}


def test_a_custom_op_in_python_is_seen_through_and_no_other():
    @torch.library.custom_op("norm_verifier_tests::third", mutates_args=(), device_types="cpu")
    def third(x: torch.Tensor) -> torch.Tensor:
        return x / 3

    library = torch.library.Library("norm_verifier_native", "DEF")
    library.define("half(Tensor x) -> Tensor")
    library.impl("half", lambda x: x.clone(), "CPU")
    with HostArithmetic() as host:
        third(torch.ones(2))
        torch.ops.norm_verifier_native.half(torch.ones(2))
    assert host.seen == {"div", "half"}


def test_a_write_behind_an_allocation_is_seen_after_a_compilation():
    from torch._dynamo.testing import CompileCounter

    traced = CompileCounter()

    @torch.compile(backend=traced)
    def scaled(x):
        return x.float() * 2 + torch.zeros(x.shape)

    x = torch.ones(4)
    for poison in ("nan", "finite", "nan", "finite", "nan"):
        with fresh_memory(poison) as memory:
            assert torch.equal(scaled(x), 2 * x)
            made = torch.empty(4)
    # Once, and once more where an earlier test has left the compiler doubts of its own.
    assert traced.frame_count <= 2, "each execution compiles once more"
    _, buffer, size = memory.guarded[-1]
    made.fill_(1)
    assert not list(memory.damage())
    buffer[GUARD_BYTES + size] = 0
    (found,) = memory.damage()
    assert found.about == "empty(4,)"
    assert found.text.startswith("empty(4,): 1 byte(s) in the red zone behind")


def test_what_a_compiler_traces_is_left_alone():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with fresh_memory("nan") as memory, FakeTensorMode():
        assert torch.empty(4).shape == (4,)
    assert not memory.guarded
