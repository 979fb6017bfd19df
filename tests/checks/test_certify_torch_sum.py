"""Sums that torch makes after the launch: proved in any order, and refused where they are of other terms."""

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import KERNELS, machine_runner, planted

from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.support import used_after_sums
from verifier.arithmetic.trees.tree import any_order, pairwise
from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal

LAUNCH = "_join[grid](*first, *(second or (None, None)), count, columns, PARTS=at_once, BLOCK=block)"
ROWS, ANY = 5, any_order()


@pytest.fixture(scope="module")
def ask():
    with machine_runner() as runner:

        def asked(total, dtype="float32", columns=ANY):
            written = f"for parts, out in wanted: out.copy_(({total}).to(out.dtype))"
            subject = planted({LAUNCH: written}, KERNELS / "rms_norm_triton.py")
            subject = subject.differing(trees=replace(subject.claim.trees, columns=columns))
            recipe = Recipe(rows=ROWS, columns=12, input=Values(seed=0))
            case = build(op(subject.op), subject, dtype, recipe, gradients=True)
            return certified(subject, case, runner=runner, gradients=True)

        yield asked


@pytest.mark.parametrize(
    ("total", "dtype"),
    [("parts.sum(0)", "float32"), ("parts.sum(0)", "float16"), ("parts.T.contiguous().sum(-1)", "float32")],
)
def test_a_sum_of_torch_is_one_in_any_order(ask, total, dtype):
    found = ask(total, dtype)
    assert isinstance(found, Certificate), found
    assert (ROWS, ROWS - 1) in {(one.terms, one.depth) for one in found.proofs[0].sums}
    assert any(assumed.startswith("torch.sum adds") for assumed in found.assumptions)


def test_a_sum_in_any_order_is_deeper_than_one_that_is_declared_in_pairs(ask):
    found = ask("parts.sum(0)", columns=pairwise())
    assert isinstance(found, Refusal)
    assert found.stage == "sums are no deeper than declared"


@pytest.mark.parametrize(
    "total",
    [
        "parts[1:].sum(0)",
        "parts.sum(0) + parts[0]",
        "parts.sum(0) * 1.00000012",
        "parts.sum(0) + (parts.sum(0) - parts.T.contiguous().sum(-1))",
        "(parts + parts).sum(0)",
        "(-parts).sum(0)",
        "parts.sum(0).flip(0)",
        "parts.abs().sum(0)",
        "parts.half().sum(0)",
        "parts.sum(0, dtype=torch.float64)",
        "parts.mean(0) * count",
        "torch.cat([parts, parts[:1]]).sum(0)",
        "torch.stack([parts.sum(0), parts[0] * 0]).sum(0)",
        "parts.sum(0) if parts.sum() > 0 else parts.sum(0)",
    ],
)
def test_a_sum_of_other_terms_is_refused(ask, total):
    assert isinstance(ask(total), Refusal)


def test_what_takes_a_sum_in_an_unknown_order_is_named():
    builder = Builder()
    a, b, c = (builder.append("input:x", value=place) for place in range(3))
    total = builder.append("torch.sum.f32", builder.append("torch.sum.f32", a, b), c)
    half = builder.append("torch.to.f16.f32", total)
    assert used_after_sums(builder.graph({"y": half, "z": total}, {"x": "f32"})) == ""
    for name, *operands in (
        ("add.f32", a, total),
        ("torch.neg.f32", total),
        ("cvt.f32.f16", half),
        ("torch.sum.f32", a, total),
    ):
        wrong = builder.append(name, *operands)
        found = used_after_sums(builder.graph({"y": builder.append("add.f32", wrong, c)}, {"x": "f32"}))
        assert found, name
