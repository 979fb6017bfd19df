"""Runs a CUDA subject on one recipe and judges every result against its proved bound."""

from pathlib import Path

import torch

from verifier import load
from verifier.arithmetic.formats import ieee
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.truth import Truth
from verifier.execution.call_subject import lay_out, named_results
from verifier.ops import Setting, op
from verifier.records.observation import Observation

KERNELS = Path(__file__).parents[2] / "kernels"

# CUDA C++ Programming Guide, mathematical functions of float (ulp from the correctly rounded result; c ulp
# are at most (2c + 1) u): rsqrtf 2, expf 2, logf 1. Division is IEEE, as NVRTC compiles by default.
DOCUMENTED = {"reciprocal_square_root": 5.0, "exponential": 5.0, "exponential_underflow": 2.0**-126}


def subject_of(stem):
    """Return the one subject of kernels/<stem>.py."""
    (subject,) = load(KERNELS / f"{stem}.py").subjects
    return subject


def output_of(stem, *arguments):
    """Return the output alone of the subject of kernels/<stem>.py."""
    results = subject_of(stem)(*arguments)
    return results[0] if isinstance(results, tuple) else results


def setting_of(subject, dtype):
    """Return the arithmetic of CUDA C++ on any device, and the declared trees."""
    name = subject.accumulation(dtype)
    arithmetic = ieee(name, **DOCUMENTED, evidence="CUDA C++ Programming Guide")
    return Setting(arithmetic=arithmetic, trees=subject.claim.trees)


def observe(subject, case, device):
    """Call the subject, and its backward pass if there is one; returns results and gradients by name."""
    differentiable = bool(op(case.op).differentiable)
    call = lay_out(subject, case, device=device, gradients=differentiable)
    outputs = subject(**call.arguments)
    results = named_results(subject, outputs)
    if differentiable:
        wanted = {n: t for n, t in call.arguments.items() if isinstance(t, torch.Tensor) and t.requires_grad}
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        found = torch.autograd.grad(first, list(wanted.values()), call.placed["grad_output"].tensor)
        results |= {f"grad_{name}": gradient for name, gradient in zip(wanted, found, strict=True)}
    return Observation(status="ok", outputs=results)


def outcomes(subject, dtype, device, **recipe):
    """Return the outcomes of all results of one recipe."""
    case = build(op(subject.op), subject, dtype, Recipe(**recipe), gradients=True)
    assert case is not None
    seen = observe(subject, case, device)
    names = tuple(name for name, value in seen.outputs.items() if value is not None)
    truth = Truth(subject=subject, case=case, setting=setting_of(subject, dtype))
    return judge(truth, seen, names)
