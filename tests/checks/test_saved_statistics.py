"""Whether an output was made of the statistics that were saved beside it."""

from dataclasses import replace

import pytest
import torch
from checks_support import (
    KERNELS,
    examination,
    failures,
    faulty,
    machine,
    outcomes_of,
    passes,
    subject_of,
)

from verifier import load, tree
from verifier.cases.recipe import assemble
from verifier.ops import op
from verifier.records.verdict import Verdict

CASES = {"hazards": ("ordinary", "lognormal"), "joint": False, "count": 6, "shapes": ((4, 1000),)}


def test_other_means_than_the_saved_one_are_seen_here_and_nowhere_else():
    subject = faulty("means_of_two_lanes")
    (found, *_) = failures(outcomes_of(subject, "saved_statistics", **CASES))
    assert found.output == "output"
    assert "not made of the saved statistics" in found.message
    assert "per_lane_means" in found.message
    for other in ("forward_error", "memory", "claim", "layouts"):
        assert not failures(outcomes_of(subject, other, count=4)), other


def by_one_warp(module):
    """The kernel, one warp a row: of several, Triton 3.6 makes one number, of lanes of one never."""
    design = replace(module.DESIGN, tile=lambda columns, dtype: (32, 1))

    def function(input, normalized_shape, weight=None, bias=None, eps=1e-5):
        return module.layer_norm.layer_norm_by(design, input, normalized_shape, weight, bias, eps)

    return function


def test_lanes_that_keep_their_own_means_declare_it():
    pytest.importorskip("triton")
    kernel = load(KERNELS / "layer_norm_welford_triton.py")
    (subject,) = kernel.subjects
    assert subject.claim.variance_options["per_lane_means"]
    trees = replace(subject.claim.trees, statistics=tree(lanes=32))
    subject = subject.differing(function=by_one_warp(kernel.module), trees=trees)
    values = torch.randn(16, 1000, generator=torch.Generator().manual_seed(0))
    tensors = {"input": values, "weight": None, "bias": None}
    scalars = {"eps": 1e-5, "normalized_shape": (1000,)}
    case = assemble(op("layer_norm"), "float32", tensors, scalars, {}, hazard="ordinary", origin="test")
    with machine():
        declared, silent = (
            examination(s, "saved_statistics", "float32", "machine").judge(case)[0]
            for s in (subject, subject.differing(variance_options={}))
        )
    assert [o.verdict for o in declared] == [Verdict.PASS, Verdict.PASS]
    (found,) = failures(silent)
    assert "not made of the saved statistics" in found.message


def by_quotient(input, weight=None, bias=None, eps=1e-5):
    """Divide by the root, and save the mean and the reciprocal in the input's format."""
    x = input.float()
    mean = x.mean(-1, keepdim=True)
    root = torch.sqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    y = (x - mean) / root
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(input.dtype), mean.flatten().to(input.dtype), (1 / root).flatten().to(input.dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_statistics_rounded_as_they_are_saved_and_a_quotient_are_no_other_statistics(dtype):
    subject = faulty("means_of_two_lanes").differing(saved_dtype="input", function=by_quotient)
    found = outcomes_of(subject, "saved_statistics", dtype, **CASES)
    assert passes(found)
    assert not failures(found)


def test_a_root_that_is_subnormal_where_it_is_saved_is_no_other_statistic():
    subject = faulty("means_of_two_lanes").differing(saved_dtype="input", function=by_quotient)
    values = torch.full((2, 64), 62000.0, dtype=torch.float16)
    values[:, ::2] *= -1  # 1 / 62000 lies between two of float16's coarsest numbers
    tensors = {"input": values, "weight": None, "bias": None}
    scalars = {"eps": 1e-5, "normalized_shape": (64,)}
    case = assemble(op("layer_norm"), "float16", tensors, scalars, {}, hazard="ordinary", origin="test")
    found = examination(subject, "saved_statistics", "float16", "eager").judge(case)[0]
    assert [(o.verdict, o.output) for o in found] == [(Verdict.PASS, "mean"), (Verdict.PASS, "rstd")]


def by_scale_and_shift(input, weight=None, bias=None, eps=1e-5):
    """Multiply by rstd * weight, and add what bias and mean leave: another formula for the same output."""
    mean = input.mean(-1, keepdim=True)
    rstd = torch.rsqrt((input - mean).square().mean(-1, keepdim=True) + eps)
    scale = rstd if weight is None else rstd * weight
    shift = -(mean * scale) if bias is None else bias - mean * scale
    return input * scale + shift, mean.flatten(), rstd.flatten()


def test_a_formula_that_nobody_declared_may_fold_the_weight_into_its_scale():
    declared = faulty("means_of_two_lanes").differing(function=by_scale_and_shift)
    claim = replace(declared.claim, formula=None, assumed=frozenset({"formula"}))
    silent = replace(declared, claim=claim)
    more = {**CASES, "count": 12}
    assert not failures(outcomes_of(silent, "saved_statistics", **more))
    (found, *_) = failures(outcomes_of(declared, "saved_statistics", **more))
    assert "by another formula than is declared" in found.message


def by_another_root(input, weight=None, bias=None, eps=1e-5):
    output, mean, rstd = by_scale_and_shift(input, weight, None, eps)
    output = output * (1 + 1e-5)  # the bug
    return output if bias is None else output + bias, mean, rstd


def test_another_root_is_seen_whatever_the_formula():
    declared = faulty("means_of_two_lanes").differing(function=by_another_root)
    silent = replace(declared, claim=replace(declared.claim, formula=None, assumed=frozenset({"formula"})))
    assert failures(outcomes_of(silent, "saved_statistics", **CASES))


def by_running_statistics(input, *, running_mean, running_var, weight=None, bias=None, eps=1e-5):
    shape = (1, -1, *(1 for _ in input.shape[2:]))
    rstd = 1 / torch.sqrt(running_var + eps)
    y = (input - running_mean.reshape(shape)) * rstd.reshape(shape)
    y = y if weight is None else y * weight.reshape(shape)
    y = y if bias is None else y + bias.reshape(shape)
    return y, running_mean.clone(), rstd


def test_statistics_that_are_given_are_compared_like_others():
    subject = faulty("means_of_two_lanes").differing(op="batch_norm", function=by_running_statistics)
    tensors = {
        "input": torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0)),
        "running_mean": torch.tensor([0.5, -1.0, 2.0]),
        "running_var": torch.tensor([0.5, 1.0, 2.0]),
        "weight": None,
        "bias": None,
    }
    scalars = {"eps": 1e-5, "training": False, "momentum": 0.1}
    case = assemble(op("batch_norm"), "float32", tensors, scalars, {}, hazard="ordinary", origin="test")
    found = examination(subject, "saved_statistics", "float32", "eager").judge(case)[0]
    assert {o.verdict for o in found} <= {Verdict.PASS, Verdict.NO_THEOREM}, found


def saving(count):
    """A layer norm that saves so many numbers of rows that have no element, and one of every other."""

    def function(input, weight=None, bias=None, eps=1e-5):
        mean = input.mean(-1, keepdim=True)
        variance = (input - mean).square().mean(-1, keepdim=True)
        rstd = 1 / torch.sqrt(variance + eps)
        y = (input - mean) * rstd
        y = y if weight is None else y * weight
        y = y if bias is None else y + bias
        return y, *(t if input.shape[-1] else t.new_full((count,), torch.nan) for t in (mean, rstd))

    return faulty("means_of_two_lanes").differing(function=function)


@pytest.mark.parametrize(("count", "said"), [(0, 0), (3, 0), (2, 2)])
def test_rows_without_elements_have_a_statistic_each_or_none(count, said):
    found = failures(outcomes_of(saving(count), "saved_statistics", count=1, shapes=((3, 0),)))
    assert len(found) == said
    assert all("has 2 number(s); 3 are expected" in one.message for one in found)


def test_rows_without_elements_are_no_alarm_on_a_kernel_that_saves_nothing_of_them():
    pytest.importorskip("triton")
    kernel = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    with machine(strict=True):
        assert not failures(
            outcomes_of(kernel, "saved_statistics", "float32", "machine", count=1, shapes=((3, 0),))
        )
