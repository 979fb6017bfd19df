"""The online softmax where its sum is rescaled: rows of several tiles, late maxima, empty lanes."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
from in_process import InProcess

from verifier import load, machine
from verifier.cases.fixed_list import covering
from verifier.cases.recipe import Recipe, build
from verifier.checks import check
from verifier.checks.support.session import Session
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.verdict import Verdict

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the kernels here are Triton's, which is not installed"
)

ROOT = Path(__file__).parents[2]
TILE = 512  # columns of the kernel's tile
ROW = 3 * TILE + 8
LONG_ROW = 4104  # three tiles of 2048, the tile of long rows
NOTHING, LOWEST = -math.inf, -torch.finfo(torch.float32).max


@pytest.fixture(autouse=True)
def _checks_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "checks"))
    yield
    sys.modules.pop("checks_support", None)


def module_of(stem="softmax_online_triton"):
    return load(ROOT / "kernels" / f"{stem}.py")


def softmax_of(values):
    with machine.session(poison=0xFF):
        (subject,) = module_of().subjects
        return subject(torch.tensor(values), dim=-1)


@pytest.mark.parametrize("stem", ["softmax_online_triton", "log_softmax_online_triton"])
@pytest.mark.parametrize("name", ["forward_error", "gradient", "formula", "determinism"])
def test_rows_of_several_tiles_are_among_the_first_cases(stem, name):
    (subject,) = module_of(stem).subjects
    plan = check(name).plan(subject, op(subject.op)).few_shapes()
    recipes = [recipe for recipe, _ in zip(covering(subject, plan), range(10), strict=False)]
    assert (module_of().module.TILE, module_of().module.LONG_TILE) == (TILE, 2048)
    assert max(recipe.columns for recipe in recipes) > TILE


@pytest.mark.parametrize("before", [NOTHING, LOWEST, -1000.0])
@pytest.mark.parametrize(
    ("columns", "start"),
    [(ROW, 0), (ROW, 1), (ROW, TILE - 4), (ROW, TILE), (ROW, ROW - 8), (LONG_ROW, 2044), (LONG_ROW, 4096)],
)
def test_equal_maxima_share_the_row_wherever_they_stand(before, columns, start):
    row = [before] * columns
    row[start : start + 8] = [5.0] * 8  # exp(0) is 1, their sum 8, and everything else vanishes
    wanted = [0.0] * columns
    wanted[start : start + 8] = [0.125] * 8
    assert softmax_of([row]).tolist() == [wanted]


@pytest.mark.parametrize("value", [LOWEST, -LOWEST])
def test_the_extreme_numbers_are_as_good_as_others(value):
    row = [NOTHING] * ROW
    row[TILE - 2 : TILE + 2] = [value] * 4
    assert softmax_of([row])[0, TILE - 2 : TILE + 2].tolist() == [0.25] * 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, NOTHING])
@pytest.mark.parametrize("at", [0, TILE, ROW - 1])
def test_a_row_without_a_value_is_nan_and_no_other_is(bad, at):
    rows = torch.zeros(3, ROW)
    rows[1, :] = NOTHING if bad == NOTHING else rows[1]
    rows[1, at] = bad
    found = softmax_of(rows.tolist())
    assert found[1].isnan().all()
    assert found[0].tolist() == found[2].tolist()
    assert set(found[0].tolist()) == {float(torch.tensor(1.0) / ROW)}


@pytest.mark.parametrize(("columns", "verdict"), [(40, Verdict.PASS), (1000, Verdict.FAIL)])
def test_formula_sees_a_sum_that_is_not_rescaled_where_a_row_has_several_tiles(columns, verdict):
    from checks_support import faulty

    subject = faulty("rescaling_forgotten_triton")
    case = build(op("softmax"), subject, "float32", Recipe(rows=2, columns=columns), gradients=False)
    with machine.session(poison=0xFF):
        setting = backend("machine").setting(subject, "float32")
        run = InProcess("machine").run
        session = Session(subject=subject, case=case, backend="machine", setting=setting, run=run)
        assert {o.verdict for o in check("formula").check(session)} == {verdict}
