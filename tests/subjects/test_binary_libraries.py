"""Libraries whose kernels others compile for a device: called with their arguments, judged there alone."""

import sys

import pytest
import torch
from torch.nn import functional

from verifier.audit.sweep import sweep
from verifier.audit.sweep_of_ways import called_apart
from verifier.subjects.libraries import library_files
from verifier.subjects.load_file import load

QUACK = {
    "quack/__init__.py": "from quack.rmsnorm import rmsnorm\n",
    "quack/rmsnorm.py": """
import torch


def rmsnorm(x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
            prenorm=False, weight_offset=0.0):
    x = x if residual is None else x + residual
    w = None if weight is None else weight + weight_offset
    y = torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps)
    return (y, x) if prenorm else y


def layernorm_fwd(x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False):
    assert x.dim() == 2
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
""",
    "quack/softmax.py": "import torch\n\n\ndef softmax(x):\n    return torch.softmax(x, -1)\n",
    "quack_kernels-0.6.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: quack-kernels\nVersion: 0.6.5\n",
    "nvidia_cutlass_dsl-4.8.1.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: nvidia-cutlass-dsl\nVersion: 4.8.1\n"
    ),
}
APEX = {
    "apex/__init__.py": "",
    "apex/normalization/__init__.py": "",
    "apex/normalization/fused_layer_norm.py": """
from torch.nn import functional


def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    return functional.layer_norm(input, normalized_shape, weight, bias, eps)


def fused_layer_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    return functional.layer_norm(input, normalized_shape, None, None, eps)


def fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    return functional.rms_norm(input, normalized_shape, weight, eps)


def fused_rms_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    return functional.rms_norm(input, normalized_shape, None, eps)
""",
    "apex-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: apex\nVersion: 0.1\n",
}  # fmt: skip
PACKAGES = {"quack": QUACK, "apex": APEX}


@pytest.fixture(params=PACKAGES)
def library(request, tmp_path, monkeypatch):
    """Put torch's own norms by the names and signatures of a library first on the path; give its name."""
    for name, text in PACKAGES[request.param].items():
        file = tmp_path / "installed" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    held = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == request.param}
    for name in held:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    yield request.param
    for name in [n for n in sys.modules if n.partition(".")[0] == request.param]:
        del sys.modules[name]
    sys.modules.update(held)


def _expected(op, given, eps):
    if op == "softmax":
        return functional.softmax(given["input"], -1)
    x = given["input"] + given["residual"] if "residual" in given else given["input"]
    weight = 1 + given["weight"] if op.endswith("one_plus_weight") else given.get("weight")
    if op == "layer_norm":
        return functional.layer_norm(x, x.shape[-1:], weight, given.get("bias"), eps)
    y = functional.rms_norm(x, x.shape[-1:], weight, eps)
    return (y, x) if "residual" in given else y


def test_each_norm_is_called_with_its_arguments_in_their_places(library):
    torch.manual_seed(3)
    every = {name: torch.randn(5, dtype=torch.float64) for name in ("weight", "bias")}
    every |= {name: torch.randn(3, 5, dtype=torch.float64) for name in ("input", "residual")}
    for subject in load(library_files()[library]).subjects:
        assert subject.language == "binary"
        given = {name: tensor for name, tensor in every.items() if name in subject.signature}
        shape = {"normalized_shape": (5,)} if "normalized_shape" in subject.signature else {}
        eps = {"eps": 0.25} if "eps" in subject.signature else {}
        found = subject(**given, **shape, **eps)
        expected = _expected(subject.op, given, 0.25)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else ((found, expected),)
        assert all(torch.equal(one, other) for one, other in pairs), subject.name


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ((), "cuda: torch sees no CUDA device here"),
        (("--backend", "machine"), "backend machine does not run subjects in binary (that is for cuda)"),
    ],
)
def test_without_a_device_nothing_is_judged_and_the_audit_says_why(library, command, backend, why):
    quick = ("--check", "forward_error", "--dtype", "float32", "--workers", "1")
    status, output, _ = command("audit", "--library", library, *quick, *backend)
    assert status == 3
    for subject in load(library_files()[library]).subjects:
        assert f"{subject.name}: not run: {why}\n" in output
    assert "nothing was decided" in output
    assert "PASS" not in output


COMPILES = """
from pathlib import Path

from verifier import Domain, subject


@subject(op="rms_norm", language="binary", variance="rms", domain=Domain(min_columns=64))
def compiles_where_it_runs(input, weight=None, eps=1e-6):
    Path(__file__).with_name("called").touch()
    raise RuntimeError("no kernel image is available for this device")
"""


def test_no_call_without_a_device_chooses_shapes_of_what_compiles_where_it_runs(tmp_path):
    file = tmp_path / "compiles.py"
    file.write_text(COMPILES)
    found = load(file).subjects[0]
    chosen = sweep(found, "float16", "cuda")
    assert not (tmp_path / "called").exists()
    assert "the machine runs no kernels in binary" in chosen.why
    assert chosen.whole == chosen.forward
    assert min(shape.columns for shape in chosen.whole) >= 64
    assert max(shape.columns for shape in chosen.whole) > 1024
    assert called_apart(found, "float16", "cuda") == {}
