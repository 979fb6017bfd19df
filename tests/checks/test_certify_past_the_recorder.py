"""Wrappers that learn of data past the recorder of what torch does: none is certified."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import asked, kernel, refused

from verifier.execution.child_process import Runner
from verifier.records.certificate import Certificate

DATA = "nothing decides on data"
UNSEEN = "operations of torch where no recorder sees them"


@pytest.fixture(scope="module")
def runner():
    with Runner(backend="machine") as opened:
        yield opened


OBJECT = """
class Number:
    def __init__(self, tensor):
        self.tensor = tensor

    def __float__(self):
        self.large = float(self.tensor.abs().max()) > 1e4
        return 0.0
"""
LARGE = "large = float(x.abs().max()) > 1e4"
ZEROED = "if large: y.zero_()"
HOST = "torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            (
                "try:",
                "    torch.multinomial(x.reshape(-1) - 1e4, 1)",
                "    y.zero_()",
                "except RuntimeError: pass",
            ),
            "multinomial, which raises an error",
        ),
        (
            ("number = Number(x)", "torch.tensor([number], dtype=x.dtype)", "if number.large: y.zero_()"),
            "tensor of objects that are no numbers",
        ),
        (("guard = torch._C._DisableTorchDispatch()", LARGE, "del guard", ZEROED), UNSEEN),
        (
            (
                "python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)",
                "with torch._C._ExcludeDispatchKeyGuard(python):",
                f"    {LARGE}",
                ZEROED,
            ),
            UNSEEN,
        ),
        (
            (
                f"most = torch.ops.aten.max.default.redispatch({HOST}, x)",
                f"large = torch.ops.aten._local_scalar_dense.default.redispatch({HOST}, most) > 1e4",
                ZEROED,
            ),
            UNSEEN,
        ),
        (
            (
                "count = torch._C._len_torch_dispatch_stack()",
                "modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)]",
                LARGE,
                "for mode in reversed(modes): torch._C._push_on_torch_dispatch_stack(mode)",
                ZEROED,
            ),
            UNSEEN,
        ),
        (
            (
                "with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.Python, True):",
                f"    {LARGE}",
                ZEROED,
            ),
            UNSEEN,
        ),
        (
            (
                "included = torch._C._dispatch_tls_set_dispatch_key_included",
                "included(torch._C.DispatchKey.Python, False)",
                LARGE,
                "included(torch._C.DispatchKey.Python, True)",
                ZEROED,
            ),
            UNSEEN,
        ),
        (("sys.setprofile(lambda *_: None)", "sys.setprofile(None)"), "setprofile"),
        (("if (x - 0).to_sparse()._nnz() < 3: y.zero_()",), "_nnz"),
    ],
    ids=[
        *("error", "object", "modes_disabled", "key_excluded", "redispatched", "modes_popped"),
        *("key_excluded_by_name", "key_not_included", "profile", "sparse"),
    ],
)
def test_a_wrapper_that_learns_of_data_past_the_recorder_is_refused(tmp_path, runner, lines, why):
    text = kernel({"AHEAD": f"import sys\n{OBJECT}", "AFTER": "\n".join(lines)})
    found = asked(tmp_path, runner, text, columns=12)
    refused(found, DATA, f"Python asks for {why}")


@pytest.mark.parametrize(
    "lines",
    [
        ("try:", "    x.t().view(-1)", "except RuntimeError:", "    pass"),
        ("scale = torch.tensor([1.0, 2.0])",),
    ],
    ids=["error_of_a_view", "tensor_of_numbers"],
)
def test_errors_that_shapes_make_and_tensors_of_numbers_tell_nothing(tmp_path, runner, lines):
    found = asked(tmp_path, runner, kernel({"AFTER": "\n".join(lines)}), columns=12)
    assert isinstance(found, Certificate), found
