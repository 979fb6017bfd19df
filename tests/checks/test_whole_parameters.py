"""Parameters each of whose numbers acts on all elements: what checks say of them, and of Liger's."""

import importlib.util

import pytest
import torch
from checks_support import KERNELS, cases_of, examination, fails, machine, outcomes_of, planted

from verifier import Domain, load, subject
from verifier.cases.recipe import Recipe, build
from verifier.checks.influence import sources_of
from verifier.checks.support.reached_elements import positions_in_rows
from verifier.ops import op
from verifier.records.verdict import Verdict
from verifier.subjects.libraries import library_files

TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not TRITON, reason="Triton is not installed")
DECLARED = {
    "op": "dynamic_tanh",
    "language": "torch",
    "accumulates": "float64",
    "formula": "autograd",
    "domain": Domain(max_abs=1e15),
    "dtypes": ("float64",),
}


@subject(**DECLARED)
def written_out(input, alpha, weight, bias):
    return torch.tanh(alpha * input) * weight + bias


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, alpha):
        return alpha.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + 2.0**-20)


@subject(**DECLARED)
def with_another_gradient_of_alpha(input, alpha, weight, bias):
    return torch.tanh(_Doubled.apply(alpha) * input) * weight + bias


@pytest.mark.parametrize(
    ("name", "verdict"), [(written_out, Verdict.PASS), (with_another_gradient_of_alpha, Verdict.FAIL)]
)
def test_differences_by_a_learned_scale_have_a_tolerance_of_their_own(name, verdict):
    found = {o.verdict for o in outcomes_of(name, "gradcheck", "float64", "eager", 3)}
    assert verdict in found
    assert found <= {verdict, Verdict.SKIPPED}


def test_a_scale_has_no_row_and_no_column_and_is_no_source_of_either():
    the_op = op("dynamic_tanh")
    case = build(the_op, written_out, "float64", Recipe(rows=1, columns=1, variant=3), gradients=True)
    assert case.given["alpha"].shape == case.given["input"].shape == (1,)
    assert positions_in_rows(the_op, case, "alpha", (1,)) == {}
    assert "alpha" not in sources_of(the_op, case, "rows")
    assert "alpha" not in sources_of(the_op, case, "entries")


SMALL = ((3, 12),)


@needs_triton
@pytest.mark.parametrize(
    ("kernel", "old", "new", "check", "shapes"),
    [
        ("poly_norm", "programs, width)", "programs - 1, width)", "influence", SMALL),
        ("poly_norm", "rstd_2 * mean_2", "rstd_2 * mean_1", "formula", SMALL),
        ("poly_norm", "(2.0 * value)", "(2.001 * value)", "gradcheck", SMALL),
        (
            "dynamic_tanh",
            "[alpha_sum], programs * tiles, 1)",
            "[alpha_sum], programs * tiles - 1, 1)",
            "influence",
            SMALL,
        ),
        (
            "dynamic_tanh",
            "part_da += through * value",
            "part_da += through * scale * value",
            "gradient",
            SMALL,
        ),
        (
            "dynamic_tanh",
            "through = (1.0 - curve * curve) * d",
            "through = (1.0 - curve) * d",
            "formula",
            SMALL,
        ),
        ("dynamic_tanh", "1.0 - curve * curve", "1.0 - curve * curve * 0.9999", "gradcheck", SMALL),
        (
            "dynamic_tanh",
            "* tl.num_programs(0) + tl.program_id(0)",
            "* tl.num_programs(0)",
            "gradient",
            ((3, 1030),),
        ),
    ],
)
def test_a_mistake_in_the_kernel_is_found(kernel, old, new, check, shapes):
    wrong = planted({old: new}, KERNELS / f"{kernel}_triton.py")
    with machine() as place:
        found = outcomes_of(wrong, check, "float32", place, 4, until=fails, shapes=shapes)
    assert any(map(fails, found))


@needs_triton
@pytest.mark.skipif(
    importlib.util.find_spec("liger_kernel") is None,
    reason="liger-kernel is not installed (it comes with the extra dev)",
)
@pytest.mark.parametrize("check", ["forward_error", "gradient", "formula", "running_bound"])
def test_the_dynamic_tanh_of_liger_is_right(check):
    (found,) = (s for s in load(library_files()["liger"]).subjects if s.name == "liger_dynamic_tanh")
    with machine():
        examining = examination(found, check, "float32", "machine")
        cases = cases_of(found, check, "float32", 2, shapes=((4, 33),))
        verdicts = {o.verdict for case in cases for o in examining.judge(case)[0]}
    assert verdicts == {Verdict.PASS}
