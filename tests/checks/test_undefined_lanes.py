"""Lanes that the mask of a load leaves undefined are filled: who computes with them is found, no one else."""

import pytest
from checks_support import FAULTY, KERNELS, cases_of, examination, machine, planted, subject_of

from verifier.checks.support.undefined_lanes import FILLS
from verifier.records.verdict import Verdict

pytest.importorskip("triton")

STEM = "sums_undefined_lanes_triton"
SOURCE = FAULTY / f"{STEM}.py"
LOAD = "value = tl.load(x + row * columns + column, mask=inside).to(tl.float32)"
PADDED = (3, 33)
FULL = (2, 128)


def judged(subject, shape=PADDED, backend="machine"):
    """Return the outcomes of memory on one case, and the number of executions."""
    with machine(poison=0xFF):
        examining = examination(subject, "memory", "float32", backend)
        (case,) = cases_of(subject, "memory", "float32", 1, shapes=(shape,))
        outcomes = examining.judge(case)[0]
        return outcomes, examining.runner.runs


def changed(**lines):
    """Return the subject of the faulty kernel with another load, and perhaps another sum."""
    new = {"load": LOAD, "sum": "tl.sum(value, axis=0)"} | lines
    return planted({LOAD: new["load"], "tl.sum(value, axis=0)": new["sum"]}, SOURCE)


def line_of(text, path=SOURCE):
    (number,) = [n for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text in line]
    return f"{path.name}:{number}"


def test_a_sum_over_undefined_lanes_is_found_with_the_line_of_the_one_load_that_matters():
    outcomes, _ = judged(subject_of(SOURCE))
    (found,) = outcomes
    assert found.verdict is Verdict.FAIL
    assert f"(source {line_of(LOAD)})" in found.message
    assert found.message.startswith("output: 99 of 99 elements depend on lanes that the mask")
    assert "nan with NaN there" in found.message


def test_where_no_lane_is_left_out_nothing_depends_on_the_fill():
    outcomes, _ = judged(subject_of(SOURCE), FULL)
    assert [o.verdict for o in outcomes] == [Verdict.PASS]


def test_a_kernel_that_selects_before_it_sums_passes_with_every_fill():
    right = "tl.sum(tl.where(inside, value, 0.0), axis=0)"
    outcomes, runs = judged(changed(sum=right))
    assert [o.verdict for o in outcomes] == [Verdict.PASS]
    assert runs == 1 + len(FILLS)


def test_a_kernel_that_says_what_its_lanes_get_is_compiled_and_run_once():
    outcomes, runs = judged(subject_of(KERNELS / "layer_norm_two_pass_triton.py"))
    assert [o.verdict for o in outcomes] == [Verdict.PASS]
    assert runs == 1


def test_a_product_with_zero_is_no_selection():
    wrong = "tl.sum(value * tl.where(inside, 1.0, 0.0), axis=0)"
    (found,) = judged(changed(sum=wrong))[0]
    assert found.verdict is Verdict.FAIL


@pytest.mark.parametrize(("swallows", "fill"), [("max", "a positive number"), ("min", "a negative number")])
def test_a_maximum_or_minimum_that_swallows_nan_is_found_by_a_number(swallows, fill):
    wrong = f"tl.sum(tl.where(inside, value, 0.0), axis=0) + tl.{swallows}(value, axis=0)"
    (found,) = judged(changed(sum=wrong))[0]
    assert found.verdict is Verdict.FAIL
    assert f"with {fill} there" in found.message


def test_an_address_of_an_undefined_integer_is_found_where_it_leads():
    bits = "(x + row * columns + column).to(tl.pointer_type(tl.int32), bitcast=True)"
    index = f"tl.where(inside, column, tl.load({bits}, mask=inside))"
    wild = f"value = tl.load(x + row * columns + {index})"
    (found,) = judged(changed(load=wild, sum="tl.sum(tl.where(inside, value, 0.0), axis=0)"))[0]
    assert found.verdict is Verdict.FAIL
    assert found.output == "undefined lanes"
    assert found.message.startswith("undefined lanes: with NaN in lanes that the mask")
    assert "out_of_bounds" in found.message
