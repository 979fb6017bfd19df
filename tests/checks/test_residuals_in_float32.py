"""Norms of a sum whose residual is kept in float32, as people write them: right ones pass, in every form."""

from dataclasses import replace

import pytest
import torch
from checks_support import KERNELS, examination, machine_runner, subject_of

from strategies.values import Values
from verifier import Domain, subject
from verifier.audit.rules import deciding
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.conformance import examine_job, parameters
from verifier.ops import op
from verifier.records.certificate import Certificate
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import load_subjects

IN_TORCH = """
BESIDE = {"residual_dtypes": ("input", "float32"), "parameter_dtypes": ("input", "float32")}
COMMON = {"op": "add_rms_norm", "language": "torch", "variance": "rms", "accumulates": "float32",
          "dtypes": ("bfloat16",), "returns": ("output", "new_residual"),
          "domain": Domain(max_abs=1e12, **BESIDE)}

def norm(x, weight, eps):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.float()

@subject(formula="autograd", **COMMON)
def promoted(input, residual, weight=None, eps=1e-5):
    total = input + residual
    return norm(total.float(), weight, eps).to(input.dtype), total

@subject(formula="kept_sum_autograd", **COMMON)
def kept(input, residual, weight=None, eps=1e-5):
    total = input.float() + residual.float()
    return norm(total, weight, eps).to(input.dtype), total.to(residual.dtype)
"""
DROPPED = """
@subject(op="dropout_add_rms_norm", language="torch", variance="rms", accumulates="float32",
         formula="autograd", dtypes=("float16",), returns=("output", "new_residual"),
         domain=Domain(max_abs=1e15, min_eps=1e-6, residual_dtypes=("input", "float32")))
def dropped(input, residual, dropout_mask, weight=None, eps=1e-5, p=0.5):
    total = torch.where(dropout_mask, input * (1 / (1 - p)), 0.0) + residual
    x = total.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight.float()
    return y.to(input.dtype), total
"""


def test_blocks_of_torch_operators_pass(kernel_file):
    subjects = load_subjects(kernel_file(IN_TORCH))
    jobs = [job for _, job in parameters(subjects) if job.check in {"forward_error", "gradient"}]
    lines = [examine_job(job, budget="20") for job in jobs]
    assert [(line.subject, line.check, line.findings) for line in lines if line.findings] == []
    assert not [words for line in lines for words in line.untried if words.startswith("residual")]


def judged(one, check, recipe, **changes):
    case = build(op(one.op), one, "float16", recipe, gradients=check == "gradient")
    case = replace(case, tensors={**case.tensors, **changes}, scalars={**case.scalars, "p": 0.5})
    outcomes, _ = examination(one, check, "float16").judge(case)
    return {o.output: o.verdict for o in deciding(outcomes)}


@pytest.mark.parametrize("held", ["input", "float32"])
@pytest.mark.parametrize("scale", [-14, -17])
def test_autograd_may_round_to_half_before_it_multiplies(held, scale, kernel_file):
    """Of numbers that are subnormal there, twice the rounded one is not the rounded double."""
    small = Values(seed=9, scale=scale)
    recipe = Recipe(
        rows=4,
        columns=64,
        residual_dtype=held,
        grad_output=small,
        further=(("grad_new_residual", replace(small, seed=3)),),
    )
    one = subject_of(kernel_file(DROPPED))
    assert judged(one, "gradient", recipe)["grad_input"] is Verdict.PASS


def test_there_is_no_theorem_of_an_input_that_overflows_where_it_is_scaled(kernel_file):
    one = subject_of(kernel_file(DROPPED))
    recipe = Recipe(rows=2, columns=4, residual_dtype="float32")
    large = {
        "input": torch.full((2, 4), 40000.0, dtype=torch.float16),
        "dropout_mask": torch.ones(2, 4, dtype=torch.bool),
    }
    assert set(judged(one, "forward_error", recipe, **large).values()) == {Verdict.NO_THEOREM}
    held = one.differing(formula="canonical")
    assert Verdict.FAIL in judged(held, "forward_error", recipe, **large).values()


def test_a_certificate_is_of_the_sum_as_it_is_stored():
    """The backward pass reads the stored sum, in the residual's dtype and no other."""
    pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")
    one = subject_of(KERNELS / "add_layer_norm_triton.py")
    wide = one.differing(domain=replace(one.domain, residual_dtypes=("float32",)))
    case = build(op(wide.op), wide, "bfloat16", Recipe(rows=2, columns=32), gradients=True)
    with machine_runner() as runner:
        found = certified(wide, case, runner=runner, gradients=True)
    assert isinstance(found, Certificate), found
    assert {"new_residual", "grad_residual"} <= {*found.outputs}


def kernel(input, residual, weight=None):
    return input, residual


@pytest.mark.parametrize(
    ("named", "options", "words"),
    [
        (("float32",), {"op": "layer_norm"}, "op 'layer_norm' adds nothing"),
        (("float32",), {"op": "add_rms_norm", "dtypes": ("float64",)}, "names none that holds float64"),
        (("bfloat16",), {"op": "add_rms_norm", "dtypes": ("float16",)}, "names none that holds float16"),
        (
            ("float32",),
            {"op": "add_rms_norm", "dtypes": ("float16",), "accumulates": "input"},
            "sums in float16 hold",
        ),
        (("float64",), {"op": "add_rms_norm", "dtypes": ("float32",)}, "names none that holds float32"),
    ],
)
def test_a_residual_of_which_no_theorem_speaks_is_refused(named, options, words):
    with pytest.raises(ValueError, match=words):
        subject(language="torch", domain=Domain(residual_dtypes=named), **options)(kernel)


def test_beside_doubles_a_residual_in_float32_is_not_tried():
    one = subject_of(KERNELS / "add_rms_norm_triton.py")
    kinds = {dtype: one.residual_dtypes_beside(dtype) for dtype in one.dtypes}
    assert kinds == {
        "float16": ("input", "float32"),
        "bfloat16": ("input", "float32"),
        "float32": ("input", "float32"),
        "float64": ("input",),
    }
