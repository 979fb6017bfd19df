"""Public signatures of norms are described: each proposal loads, says the right op and keeps what it says."""

import itertools
import shutil
from pathlib import Path

import pytest

from verifier.audit.examination import Examination
from verifier.checks import check
from verifier.commands import describe as description
from verifier.commands.describe import describe
from verifier.commands.describing import claims, smoke
from verifier.execution.backends import default_backend
from verifier.ops import op
from verifier.records.verdict import BAD, Verdict
from verifier.subjects.load_file import load_subject

SIGNATURES = Path(__file__).with_name("signatures")
SAID = {
    "liger_rms_norm": ("rms_norm", "X is input, W is weight", '"float16": "cast_before_weight"'),
    "liger_layer_norm": ("layer_norm", 'variance="two_pass"'),
    "liger_group_norm": ("group_norm", "num_channels=input.shape[1]"),
    "liger_fused_add_rms_norm": ("unknown", 'returns=("output", "total")', "return y, x", "eps)[:2]"),
    "layer_norm_fn": ("layer_norm", "residual, left at the default"),
    "rms_norm_fn": ("rms_norm", "bias=None"),
    "dropout_add_layer_norm": ("unknown", "x0 is input", "dropout_p=0.0", "x = input + residual"),
    "rms_norm": ("rms_norm", "eps=1e-05"),
    "rms_norm_gated": ("rms_norm_silu_gate",),
    "l2norm": ("l2_norm",),
    "fused_layer_norm_affine": ("layer_norm", "Paste this above", 'variance="welford"'),
    "fused_rms_norm_affine": ("rms_norm", "Paste this above"),
    "vllm_rms_norm": (
        "rms_norm",
        'language="triton"',
        "launches bodies._forward\n",
        "return out",
        "differentiable=False",
    ),
    "fused_add_rms_norm": ("unknown", 'language="triton"', "return input, residual", "return y, x"),
    "fast_rms_layernorm": ("rms_norm", 'language="triton"', "SimpleNamespace(", 'gradients=("input",)'),
    "quack_rmsnorm": ("rms_norm", "weight=None"),
    "gemma_rmsnorm": ("rms_norm_one_plus_weight", 'language="triton"'),
    "rmsnorm_fn": ("rms_norm", "z, left at the default"),
    "fused_ln": ("layer_norm", 'language="triton"', "gamma is weight, beta is bias"),
    "llama_rms_norm": ("rms_norm", "hidden_states is input, variance_epsilon is eps"),
}


@pytest.fixture
def file(tmp_path):
    for one in SIGNATURES.glob("*.py"):
        shutil.copy(one, tmp_path)
    return tmp_path / "public.py"


def pasted(file, name, text):
    """Paste a declaration where it says that it belongs; return the subject."""
    body = file.read_text()
    if "# Paste this above" in text:
        body = body.replace(f"\ndef {name}(", f"\n{text}\ndef {name}(")
    else:
        name = text.rpartition("\ndef ")[2].partition("(")[0]
        body = f"{body}\n\n{text}\n"
    copy = file.with_name("pasted.py")
    copy.write_text(body)
    return load_subject(copy, name)


@pytest.mark.parametrize("name", SAID)
def test_a_public_signature_gets_a_declaration_that_holds(name, file, monkeypatch, request):
    if 'language="triton"' not in SAID[name]:  # the machine needs a child
        request.getfixturevalue("no_child")
    for count in ("CASES", "GRADIENT_CASES", "COMPILED_CASES", "COMPILED_GRADIENT_CASES"):
        monkeypatch.setattr(claims, count, 3)
    monkeypatch.setattr(smoke, "CASES", 2)
    text = describe(file, name)
    for words in (f'op="{SAID[name][0]}"', *SAID[name][1:]):
        assert words in text.replace("\n#   ", " ")
    assert "refuted" not in text
    subject = pasted(file, name, text)
    place, _ = default_backend(subject)
    judged = "running_bound" if subject.op == "unknown" else "forward_error"
    plan = check(judged).plan(subject, op(subject.op)).few_shapes()
    cases = itertools.islice(claims.cases_of(subject, "float16", plan, gradients=plan.gradients), 2)
    with description.Runner(place) as runner:
        examination = Examination(subject=subject, check_name=judged, dtype="float16", runner=runner)
        verdicts = {outcome.verdict for case in cases for outcome in examination.judge(case)[0]}
    assert Verdict.PASS in verdicts
    assert not verdicts & BAD


HALF_SUMS = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    value = tl.load(x + start + at, mask=at < columns, other=-float("inf"))
    power = tl.exp((value - tl.max(value, 0)).to(tl.float32)).to(value.dtype)
    tl.store(y + start + at, power / tl.sum(power, 0), mask=at < columns)

def softmax(x):
    dense = x.contiguous()
    y = torch.empty_like(dense)
    if y.numel():
        columns = x.shape[-1]
        kernel[(y.numel() // columns,)](dense, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y
"""


def test_sums_in_the_input_s_dtype_are_proposed_where_the_code_has_them(kernel_file, monkeypatch):
    monkeypatch.setattr(claims, "COMPILED_CASES", 2)
    text = describe(kernel_file(HALF_SUMS, head="")).replace("\n#   ", " ")
    for words in ('op="softmax"', 'accumulates="input"', "the compiled code keeps sums in half precision"):
        assert words in text
    assert "refuted" not in text
