"""A proposed declaration says what the kernel does, with what speaks for it, and can be pasted."""

import re

import pytest

from verifier.audit.request import BUDGETS, SelectionError
from verifier.audit.rules import line_verdict
from verifier.audit.run_audit import audit, select
from verifier.bounds.variance import algorithms
from verifier.commands import describe as command
from verifier.commands.describe import describe
from verifier.commands.describing import claims
from verifier.commands.describing.found_function import found_function
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import LoadError, load_subjects

pytestmark = pytest.mark.usefixtures("no_child")
BARE = "import torch\nimport torch.nn.functional as F\n\n"
KERNELS = """
def two_pass(input, weight=None, bias=None, eps=1e-5):
    x = input.float()
    d = x - x.mean(-1, keepdim=True)
    out = d / torch.sqrt(d.square().mean(-1, keepdim=True) + eps)
    return ((out if weight is None else out * weight) + (0 if bias is None else bias)).to(input.dtype)

def textbook(input, weight=None, bias=None, eps=1e-5):
    x = input.float()
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean * mean).clamp(min=0)
    out = (x - mean) / torch.sqrt(variance + eps)
    return ((out if weight is None else out * weight) + (0 if bias is None else bias)).to(input.dtype)

def powers_fused(input, dim=-1):
    x, log2e = input.detach().float(), 1.4426950408889634
    top = (x.amax(dim, keepdim=True) * log2e).double()
    power = torch.exp2((x.double() * log2e - top).float())  # as a device fuses the product
    return (power / power.sum(dim, keepdim=True)).to(input.dtype)

def three_results(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    x, axes = input.detach().float(), tuple(range(-len(normalized_shape), 0))
    mean = x.mean(axes, keepdim=True)
    rstd = 1 / torch.sqrt((x - mean).square().mean(axes, keepdim=True) + eps)
    out = (x - mean) * rstd
    out = (out if weight is None else out * weight) + (0 if bias is None else bias)
    return out.detach().to(input.dtype), mean, rstd

def root_mean_square(input, weight=None, eps=1e-6):
    return F.rms_norm(input, input.shape[-1:], weight, eps)

def promoted_by_weight(input, weight=None, eps=1e-6):
    if input.dtype not in (torch.float16, torch.float32):
        raise TypeError("float16 and float32 are supported")
    x = input.float()
    out = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).to(input.dtype)
    return out if weight is None else weight * out

def half_only(input, weight=None, bias=None, eps=1e-5):
    if input.dtype not in (torch.float16, torch.float32):
        raise TypeError("float16 and float32 are supported")
    return F.layer_norm(input, input.shape[-1:], weight, bias, eps)

def float16_only(input, weight=None, bias=None, eps=1e-5):
    assert input.dtype == torch.float16, "float16 tensors only"
    return two_pass(input, weight, bias, eps)

def float16_only_and_no_norm(input, weight=None, bias=None, eps=1e-5):
    assert input.dtype == torch.float16, "float16 tensors only"
    return (two_pass(input, weight, bias, eps).float() * 1.02).half()

def forward_only(input, weight=None, bias=None, eps=1e-5):
    return two_pass(input, weight, bias, eps).detach()

def no_norm_at_all(input, weight=None, bias=None, eps=1e-5):
    return input * 3

def raises_at_once(input, weight=None, bias=None, eps=1e-5):
    raise KeyError("odd")

def softmax(input, dim=-1):
    return torch.softmax(input, dim)

def other_arguments(image, strength):
    return image * strength

def with_statistics(x, gamma, beta, epsilon):
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt((wide - mean).square().mean(-1, keepdim=True) + epsilon)
    return ((wide - mean) * rstd * gamma + beta).to(x.dtype), mean.flatten(), rstd.flatten(), None

def picky(hidden_states, weight, variance_epsilon):
    if hidden_states.dim() != 2:
        raise ValueError("two dimensions are wanted")
    if not hidden_states.is_contiguous() or not weight.is_contiguous():
        raise ValueError("contiguous tensors are wanted")
    if not 1 < hidden_states.shape[1] <= 5000:
        raise ValueError("2 to 5000 columns are wanted")
    if not len(hidden_states):
        raise ValueError("rows are wanted")
    return F.rms_norm(hidden_states, hidden_states.shape[-1:], weight, variance_epsilon)

def softmax_of_rows(input, dim):
    if dim not in (-1, input.dim() - 1):
        raise ValueError("rows alone")
    return torch.softmax(input, dim)

def no_arguments():
    return torch.zeros(3)

class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scaled=1, gamma=None, epsilon=1e-5, mode=None):
        ctx.save_for_backward(x, gamma)
        ctx.eps = epsilon
        return two_pass(x, gamma, None, epsilon)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, gamma = ctx.saved_tensors
        wide = x.float()
        d = wide - wide.mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt(d.square().mean(-1, keepdim=True) + ctx.eps)
        xhat, g = d * rstd, dy.float() if gamma is None else dy.float() * gamma.float()
        dx = (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True)) * rstd
        given = None if gamma is None else (dy.float() * xhat).flatten(0, -2).sum(0).to(gamma.dtype)
        return dx.to(x.dtype), None, given, None, None

of_norm = Norm.apply

class OwnContext(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, eps):
        return F.rms_norm(x.detach(), x.shape[-1:], weight, eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
"""


@pytest.fixture
def file(kernel_file):
    return kernel_file(KERNELS, head=BARE)


TOLD = {}


def described(file, name):
    """Return what is said of one of these kernels, and say it once: it is nothing of the file's place."""
    if name not in TOLD:
        TOLD[name] = describe(file, name)
    assert str(file) not in TOLD[name]
    return TOLD[name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two_pass", ('op="layer_norm"', 'variance="two_pass"', 'language="torch"', "differentiable=False")),
        ("textbook", ('op="layer_norm"', 'variance="textbook"', "grows with kappa squared")),
        (
            "root_mean_square",
            (
                'op="rms_norm"',
                'variance="rms"',
                "parameters in float32 beside float16 and bfloat16: right. To promise it: domain=Domain(",
            ),
        ),
        (
            "promoted_by_weight",
            ("float32 beside float16: output has dtype float32; float16 is expected.\n",),
        ),
        ("softmax", ('op="softmax"', 'variance="softmax"')),
        ("half_only", ('dtypes=("float32", "float16")', '"float16": "torch_cpu_half"')),
        (
            "float16_only",
            (
                'op="layer_norm"',
                'dtypes=("float16",)',
                "ulp of float16; it takes no float32 (AssertionError",
                "tells no algorithm from another",
            ),
        ),
        ("forward_only", ("    differentiable=False,", "no backward pass")),
    ],
)
def test_the_proposal_fits_the_behaviour(name, said, file):
    text = described(file, name)
    for words in said:
        assert words in text or words in text.replace("\n#   ", " ")
    assert f"Paste this above {name}(input, " in text


@pytest.mark.parametrize("name", ["Norm", "Norm.apply", "of_norm"])
def test_an_autograd_function_is_called_by_place_and_judged_backward(name, file):
    text = described(file, name)
    called = name if name == "of_norm" else "Norm.apply"
    assert f"below {called}(x, scaled=1, gamma=None, epsilon=1e-05, mode=None, /)" in text.replace(
        "\n#   ", " "
    )
    assert f"    return {called}(input, 1, weight, eps)\n" in text
    assert "refuted" not in text
    assert "differentiable=False," not in text
    pasted = file.with_name("pasted.py")
    pasted.write_text(f"{file.read_text()}\n{text}\n")
    lines = audit(select([pasted], check_names=["forward_error", "gradient"], dtypes=["float32"])).lines
    assert {line_verdict(line) for line in lines} == {Verdict.PASS}, lines


def test_a_wrong_gradient_of_an_autograd_function_refutes_the_proposal(file):
    file.write_text(file.read_text().replace("g - g.mean(-1, keepdim=True) - xhat", "g - xhat"))
    assert "refuted: gradient" in describe(file, "Norm")


def test_an_autograd_function_may_have_no_context_in_its_forward(file):
    assert "    return OwnContext.apply(input, weight, eps)\n" in describe(file, "OwnContext")


def test_a_function_is_described_before_the_autograd_function_that_it_calls(kernel_file):
    body = KERNELS[KERNELS.index("class Norm") :].replace("of_norm = Norm.apply", "")
    body = body.partition("class OwnContext")[0]
    path = kernel_file(f"{body}\ndef norm(x, gamma):\n    return Norm.apply(x, 1, gamma)\n", head=BARE)
    assert found_function(path, None).called == "norm"
    alone = path.with_name("alone.py")
    alone.write_text(path.read_text().partition("def norm")[0])
    assert found_function(alone, None).called == "Norm.apply"


def test_the_algorithm_of_a_torch_operator_is_known_by_its_name(file):
    text = described(file, "half_only").replace("\n#   ", " ")
    assert 'variance="welford"' in text
    assert "torch's native_layer_norm ran, which computes it by Welford's updates" in text
    assert 'variance="two_pass"' in described(file, "two_pass")


@pytest.mark.parametrize("name", ["two_pass", "textbook", "root_mean_square", "softmax", "forward_only"])
def test_a_proposal_loads_and_passes_as_it_is_pasted(name, file, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", 12)
    head = f"def {name}(input"
    pasted = file.with_name("pasted.py")
    pasted.write_text(file.read_text().replace(head, f"{described(file, name)}\n{head}"))
    jobs = select([pasted], check_names=["forward_error"])
    lines = audit(jobs).lines
    assert {line.subject for line in lines} == {name}
    assert {line_verdict(line) for line in lines} == {Verdict.PASS}, lines


def test_statistics_behind_the_output_are_declared(file):
    text = describe(file, "with_statistics")
    assert 'returns=("output", "mean", "rstd"),' in text
    assert "    return with_statistics(input, weight, bias, eps)[:3]" in text
    assert "refuted" not in text


def test_a_function_that_needs_no_adapter_is_tried_as_it_is_declared(file, monkeypatch):
    """In a process of its own, which loads the declaration, and not the function's file."""
    monkeypatch.setattr(command, "Runner", Runner)
    text = describe(file, "three_results")
    assert 'returns=("output", "mean", "rstd"),' in text
    assert "_as_layer_norm" not in text
    assert "refuted" not in text


def test_what_a_kernel_refuses_lies_outside_of_the_domain_that_is_proposed(file):
    text = describe(file, "picky")
    layouts = 'layouts=("contiguous", "storage_offset", "misaligned")'
    assert f"min_columns=2, min_rows=2, max_rank=2, {layouts}, max_columns=5000)" in text
    assert "domain: 5001 columns are refused (ValueError: 2 to 5000 columns are wanted)" in text
    assert "refuted" not in text
    pasted = file.with_name("pasted.py")
    pasted.write_text(f"{file.read_text()}\n{text}\n")
    jobs = select([pasted], check_names=["forward_error", "layouts"], dtypes=["float32"])
    lines = audit(jobs).lines
    assert {line_verdict(line) for line in lines} == {Verdict.PASS}, lines


def test_a_dimension_that_is_always_the_last_is_no_argument_of_the_proposal(file):
    text = describe(file, "softmax_of_rows")
    assert "def softmax_of_rows_as_softmax(input):\n    return softmax_of_rows(input, -1)" in text
    assert "dim: any but the last is refused (ValueError: rows alone)" in text
    assert "refuted" not in text
    assert "max_rank" not in text
    pasted = file.with_name("pasted.py")
    pasted.write_text(f"{file.read_text()}\n{text}\n")
    lines = audit(select([pasted], check_names=["forward_error"], dtypes=["float32"])).lines
    assert {line_verdict(line) for line in lines} == {Verdict.PASS}, lines


DECLARED = """
from verifier import Source, subject

@subject(
    op="softmax",
    language="torch",
    dtypes=("float32",),
    source=Source(title="A page", part="step 2", author="Somebody", url="https://example.org", changed="all"),
)
def taken(input, dim=-1):
    return torch.softmax(input, dim)
"""


def test_the_source_of_a_declared_kernel_is_told(kernel_file):
    text = describe(kernel_file(DECLARED, head=BARE)).replace("\n#   ", " ")
    assert "# source: A page, step 2; changed: all (author or site: Somebody, https://example.org" in text
    assert text.endswith("licence: not stated)")


def test_a_proposal_warns_of_squares_that_overflow(file):
    """torch's own operator scales them and needs no warning."""
    warned = {
        name: "are wrong, as where squares overflow" in described(file, name)
        for name in ("two_pass", "softmax")
    }
    assert warned == {"two_pass": True, "softmax": False}


def test_a_proposal_promises_numbers_as_large_as_are_right(file):
    """Beyond 1.4e9 the rounding error of the largest product has a power that overflows."""
    text = described(file, "powers_fused")
    assert "domain=Domain(max_abs=1e9)," in text
    assert "max_abs=1e15" in described(file, "two_pass")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises_at_once", r"no op known here \(tried: .*layer_norm: KeyError: 'odd'"),
        ("no_arguments", "none has these arguments"),
        ("nowhere", "no function 'nowhere'"),
        (None, "name the function"),
    ],
)
def test_what_cannot_be_described_is_said(name, said, file):
    with pytest.raises(SelectionError, match=said):
        describe(file, name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_norm_at_all", r"no op known here \(tried: .*layer_norm: off by .* ulp"),
        ("float16_only_and_no_norm", r"layer_norm: AssertionError: .*; float16: off by .* ulp"),
        ("other_arguments", "image is input, strength is weight"),
    ],
)
def test_what_is_no_op_gets_a_specification_to_be_written(name, said, file):
    text = describe(file, name)
    assert re.search(said, text.replace("\n#   ", " "))
    assert f"specification={name}_specification" in text
    pasted = file.with_name("pasted.py")
    pasted.write_text(f"{file.read_text()}\n{text}\n")
    assert [subject.op for subject in load_subjects(pasted)] == ["unknown"]


def test_a_file_that_does_not_load_is_said(tmp_path):
    with pytest.raises(LoadError, match="no such file"):
        describe(tmp_path / "nowhere.py")


@pytest.mark.parametrize(
    ("name", "curve", "first"),
    [
        ("layer_norm", {}, ("two_pass", "welford", "textbook")),
        ("layer_norm", {0.0: 1.0, 1e2: 2.0, 1e4: 3.0}, ("two_pass", "welford", "textbook")),
        ("layer_norm", {0.0: 1.0, 1e2: 50.0, 1e4: 5e5}, ("textbook", "two_pass", "welford")),
        ("rms_norm", {}, ("rms",)),
        ("add_rms_norm", {}, ("rms",)),
        ("dropout_add_rms_norm", {0.0: 1.0}, ("rms",)),
    ],
)
def test_every_registered_algorithm_is_a_guess_and_the_common_ones_come_first(name, curve, first):
    guesses, _ = claims.guesses(op(name), curve)
    assert guesses[: len(first)] == first
    centred = "rms_norm" not in name
    assert set(guesses) == {n for n, found in algorithms().items() if centred == found.CENTRED}


def test_algorithms_that_lose_large_means_are_told_by_their_theorems():
    assert {n for n in algorithms() if claims.loses_large_means(n)} == {"textbook", "textbook_sums"}
