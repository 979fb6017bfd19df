"""Cases with numbers as large as is promised: of rows of rising magnitudes, and where other kernels run."""

from dataclasses import replace
from pathlib import Path

import pytest

from verifier import Domain
from verifier.cases.plan import Plan
from verifier.cases.priced_shape import Reaching
from verifier.cases.recipe import build
from verifier.cases.steering import LARGE_SECONDS, near_the_largest
from verifier.cases.variations import Variation
from verifier.ops import op
from verifier.subjects.load_file import load_subject

KERNEL = Path(__file__).parents[2] / "kernels" / "layer_norm_torch.py"
SHAPES = (
    Reaching(rows=1, columns=9),
    Reaching(rows=2, columns=11, opens=True, seconds=0.1),
    Reaching(rows=2, columns=11, opens=True, variation=Variation.BARE),
    Reaching(rows=3, columns=13, opens=True, seconds=2 * LARGE_SECONDS),
    *(Reaching(rows=4, columns=n, opens=True) for n in (15, 17)),
)


def cases(dtype, domain):
    subject = replace(load_subject(KERNEL, "layer_norm_torch"), domain=domain)
    first = [recipes[0] for recipes in near_the_largest(subject, Plan(literals=True), dtype, SHAPES)]
    return [build(op(subject.op), subject, dtype, recipe, gradients=True) for recipe in first]


@pytest.mark.parametrize(
    ("dtype", "domain", "least", "most"),
    [
        ("float32", None, 2.0**49, 2.0**53),
        ("float32", Domain(max_abs=1e15), 1e13, 1e15),
        ("float16", None, 2.0**11, 65504.0),
        ("float16", Domain(max_abs=5000.0), 2.0**8, 5000.0),
        ("float64", None, 2.0**490, 2.0**502),
    ],
)
def test_the_largest_numbers_come_near_to_what_is_promised(dtype, domain, least, most):
    found = cases(dtype, domain)
    assert [(case.rows, case.columns) for case in found] == [(16, 64), (2, 11), (4, 15)]
    assert all(least < case.largest <= most for case in found)
    rows = found[0].given["input"].double().abs().amax(dim=1)
    assert float(rows[0]) < 8 * 2**6
    assert float(rows[:8].max()) > least


def test_nothing_is_large_where_little_is_promised():
    assert cases("float32", Domain(max_abs=100.0)) == []
