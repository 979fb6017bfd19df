"""Machine code is left out of what Triton compiles for the machine, and is there for everything else."""

import pytest
import torch

pytest.importorskip("triton", reason="the machine plays Triton kernels; Triton is not installed")

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import PTXASError

from verifier import machine
from verifier.machine.culprit import is_own
from verifier.machine.device import without_assembly

pytestmark = pytest.mark.skipif(
    without_assembly._before_the_hook(), reason="this Triton's caches would not tell the two apart"
)


@triton.jit
def doubled(x, y):
    tl.store(y, 2 * tl.load(x))


@triton.jit
def moved(x, y, INSTRUCTION: tl.constexpr):
    value = tl.inline_asm_elementwise(INSTRUCTION, "=r,r", [tl.load(x)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y, value)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.fixture
def assembled(monkeypatch):
    """Return the kernels that were handed to the assembler."""
    seen, run = [], without_assembly._Assembler.run

    def told(self, source, metadata):
        binary = run(self, source, metadata)
        seen.extend([metadata["name"]] if binary else [])
        return binary

    monkeypatch.setattr(without_assembly._Assembler, "run", told)
    return seen


def test_a_kernel_without_assembly_runs_unassembled_and_a_device_gets_its_binary(assembled):
    x, y = torch.tensor([1.5]), torch.empty(1)
    source, target = ASTSource(doubled, {"x": "*fp32", "y": "*fp32"}), GPUTarget("cuda", 90, 32)
    with machine.session():
        doubled[(1,)](x, y)
        assert triton.compile(source, target=target).asm["cubin"] == b""
    assert y.item() == 3.0
    assert assembled == []
    assert triton.compile(source, target=target).asm["cubin"].startswith(b"\x7fELF")


def test_inline_assembly_is_assembled_and_a_mistake_in_it_found(assembled, capsys):
    x, y = torch.tensor([7], dtype=torch.int32), torch.empty(1, dtype=torch.int32)
    with machine.session():
        moved[(1,)](x, y, "not.b32 $0, $1;")
        assert y.item() == ~7
        assert assembled == ["moved"]
        with pytest.raises(PTXASError):
            moved[(1,)](x, y, "mov.b31 $0, $1;")
    assert "mov.b31" in capsys.readouterr().out


def test_a_mistake_in_assembly_is_the_kernels_and_not_the_verifiers():
    x, y = torch.zeros(1, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
    with machine.session(), pytest.raises(PTXASError) as mistaken:
        moved[(1,)](x, y, "add.s64 $0, $1;")
    assert not is_own(mistaken.value)


def test_a_hook_of_somebody_else_is_left_alone(monkeypatch):
    def theirs(*_):
        return "theirs", "theirs"

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", theirs)
    with machine.session():
        assert knobs.runtime.add_stages_inspection_hook is theirs
    assert knobs.runtime.add_stages_inspection_hook is theirs
