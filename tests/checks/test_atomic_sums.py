"""Atomic additions of floats flush subnormal numbers on every device: no fault of a kernel that uses them."""

import pytest
import torch
from checks_support import examination, failures, faulty, machine

from verifier.cases.recipe import assemble
from verifier.ops import op
from verifier.records.verdict import Verdict

pytest.importorskip("triton")


def outcomes(scale, lost=1.0):
    """Judge a layer norm that sums grad_weight by atomics, where the sums are of this size."""
    subject = faulty("sums_by_atomics_triton")
    draw = torch.Generator().manual_seed(0)
    values, slope = (torch.randn(6, 33, generator=draw) for _ in range(2))
    tensors = {
        "input": values,
        "weight": torch.ones(33),
        "bias": torch.zeros(33),
        "grad_output": slope * scale,
    }
    scalars = {"eps": 1e-5, "normalized_shape": (33,)}
    case = assemble(op("layer_norm"), "float32", tensors, scalars, {}, hazard="subnormal", origin="test")
    with machine():
        return examination(subject, "gradient", "float32", "machine").judge(case)[0]


def test_what_atomics_flush_is_no_error_of_the_kernel():
    found = outcomes(1e-39)
    assert not failures(found)
    assert Verdict.PASS in {o.verdict for o in found}


def test_only_subnormal_numbers_are_granted():
    from dataclasses import replace

    from verifier.arithmetic.formats import ieee

    plain = ieee("float32")
    assert plain.sum_omega == 0.0
    assert replace(plain, atomics=True).sum_omega == 2.0 * plain.format.smallest_normal
