"""Dry runs: what a wrapper would launch, and wrappers that do not let themselves be run dry."""

import importlib.util
from pathlib import Path

import pytest
import torch
from checks_support import KERNELS, machine, subject_of

from verifier import load
from verifier.audit import sweep as sweeping
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.cases.reaching_shapes import PLAIN
from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner, dry_run
from verifier.execution.backends import backend
from verifier.execution.dry_run import plan_launches
from verifier.ops import op
from verifier.records.planned_launches import SEVENFOLD, VALUE, WRAPPER
from verifier.records.verdict import Verdict

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
HARD = {s.name: s for s in load(Path(__file__).parents[1] / "support" / "dry_kernels.py").subjects}


def planned(subject, *points, gradients=False):
    """Return what a dry run finds at points, in this process."""
    case = build(op(subject.op), subject, "float32", Recipe(rows=4, columns=8), gradients=True)
    with machine(strict=True):
        place = backend("machine")
        return plan_launches(subject, case, backend=place, points=points, gradients=gradients).found


def searched(name, check="forward_error", cases=6):
    with Runner("machine") as runner:
        budget = Budget(cases=cases, findings=1)
        return Examination(
            subject=HARD[name], check_name=check, dtype="float32", runner=runner, budget=budget
        ).run()


def test_a_wide_row_shows_the_kernels_of_its_backward_pass_and_the_turns_of_its_loops():
    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    narrow, wide = planned(subject, (3, 64, 0), (129, 16385, 0), gradients=True).planned
    kernels = {name for name in wide.features if ": " not in name}
    assert {"layer_norm_skeleton_triton._backward_input"} <= kernels
    assert "layer_norm_skeleton_triton._backward_columns: loops over chunk n" in wide.features
    assert "layer_norm_skeleton_triton.forward_in_tiles: loops over columns by BLOCK 2" in wide.features
    assert "layer_norm_skeleton_triton.forward_in_tiles: loops over columns by BLOCK 1" in narrow.features
    assert {width for _, width in wide.compiled} == {128, 16384}
    assert not wide.refused
    assert wide.forward.features < wide.features
    ran = {feature for feature in wide.features - narrow.features if feature.startswith(WRAPPER)}
    backward = {feature for feature in ran if feature not in wide.forward.features}
    assert ran
    assert backward == ran  # of the forward pass, all statements run in either


def test_tensors_of_a_dry_run_say_that_they_lie_on_the_device_and_nothing_is_left_afterwards():
    before = torch.Tensor.device, torch.empty, torch.Tensor.to
    found = planned(HARD["odd_width"], (1 << 17, 1 << 15, 0), (5, 96, 0))
    assert [plan.refused for plan in found.planned] == ["", ""]
    assert any("_without_weight" in feature for feature in found.planned[1].features)
    assert before == (torch.Tensor.device, torch.empty, torch.Tensor.to)
    assert found.files == (str(HARD["odd_width"].path),)


ELEMENTWISE = """
import sys
import torch
from verifier import machine
from verifier.machine.device.without_memory import _hidden, without_memory

with machine.session(), without_memory():
    a = torch.empty((3, 4), device="cuda")
    for made in ((a + a) * 2.0, torch.exp(a) / a.mean(-1, keepdim=True), torch.where(a > 0, a, a.square())):
        assert made.shape == (3, 4) and made.is_cuda
assert _hidden() and not any(hasattr(function, "__dynamo_disable") for function in _hidden())
print("torch._dynamo" in sys.modules)
"""


def test_forms_of_results_are_computed_without_loading_the_compiler_of_torch(warm_python, tmp_path):
    ended = warm_python.run("-c", ELEMENTWISE, folder=tmp_path)
    assert (ended.stdout, ended.stderr) == ("False\n", "")


def test_an_error_in_long_rows_alone_is_found_though_nothing_is_launched_there():
    assert [plan.fails for plan in planned(HARD["fails_in_long_rows"], (1, 40_001, 0)).planned] == [True]
    line = searched("fails_in_long_rows", cases=10)
    assert [(f.verdict, f.case.columns) for f in line.findings] == [(Verdict.CRASH, 40_001)]
    assert "KeyError" in line.findings[0].outcome.message


def test_a_call_that_hangs_is_stopped_and_a_second_one_ends_the_run(monkeypatch):
    monkeypatch.setattr(dry_run, "CALL_SECONDS", 0.2)
    found = planned(HARD["hangs"], (1, 8, 0), (1, 30000, 0), (1, 9, 0), (2, 30000, 0), (1, 10, 0))
    assert [bool(plan.refused) for plan in found.planned] == [False, True, False, True]
    assert "did not come back" in found.ended


def test_what_a_wrapper_raises_stands_where_it_was_raised():
    few, many = planned(HARD["refuses"], (1, 8, 0), (1, 201, 0)).planned
    assert few.features
    assert many.refused == "ValueError: at most 200 columns"
    (reading,) = planned(HARD["reads_numbers"], (1, 8, 0)).planned
    assert "meta" in reading.refused
    assert not reading.features


def test_a_kernel_that_is_wrong_at_multiples_of_a_literal_is_found_by_a_quick_search():
    line = searched("odd_width", cases=25)
    assert [finding.verdict for finding in line.findings] == [Verdict.FAIL]
    assert line.findings[0].case.columns % 96 == 0


def test_a_number_that_the_wrapper_changes_at_one_width_is_found_though_the_same_kernel_is_launched():
    line = searched("odd_number", cases=25)
    assert [finding.verdict for finding in line.findings] == [Verdict.FAIL]
    assert line.findings[0].case.columns == 1280


def test_a_kernel_that_compares_its_extents_with_a_number_is_run_on_both_sides_of_it():
    line = searched("odd_many", cases=25)
    assert [finding.verdict for finding in line.findings] == [Verdict.FAIL]
    assert 700 < line.findings[0].case.rows < 710


@pytest.mark.parametrize("name", ["reads_numbers", "refuses", "launches_nothing", "keeps_tensors"])
def test_a_wrapper_that_cannot_be_run_dry_loses_no_case(name):
    line = searched(name)
    assert line.counts.total() == 6
    assert Verdict.CRASH not in line.counts
    assert [f.verdict for f in line.findings] == []
    if name == "launches_nothing":
        assert line.counts[Verdict.PASS] == 0


def test_the_shapes_of_a_wrapper_that_reads_numbers_are_a_plain_list_that_says_why():
    found = sweeping.sweep(HARD["reads_numbers"], "float32", "machine")
    assert [(shape.rows, shape.columns) for shape in found.whole] == list(PLAIN)
    assert "meta" in found.why
    assert sweeping.sweep(HARD["reads_numbers"], "float32", "eager") == sweeping.Sweep()


def test_the_widest_grid_along_y_is_told():
    subject = subject_of(Path(__file__).parents[1] / "faulty_kernels" / "rows_along_y_triton.py")
    assert [plan.widest for plan in planned(subject, (4, 8, 0), (65537, 8, 0)).planned] == [1, 16385]


def test_floating_point_numbers_and_seven_tiles_are_told():
    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    three, seven, eight = planned(
        subject, (3, 3 * 16384, 0), (3, 7 * 16384 - 1, 0), (3, 8 * 16384, 0)
    ).planned
    tiled = "layer_norm_skeleton_triton.forward_in_tiles: loops over columns by BLOCK"
    assert f"{tiled}{SEVENFOLD}" in seven.features
    assert f"{tiled} 3" in seven.features
    assert not {f for f in three.features | eight.features if f.endswith(SEVENFOLD)}
    assert {f for f in three.features if f.endswith(f": eps{VALUE}1e-05")}


def test_the_warps_of_a_kernel_of_cuda_are_told():
    subject = subject_of(KERNELS / "layer_norm_welford_cuda.py")
    found = planned(subject, (3, 1025, 0), (3, 60_000, 0)).planned
    warps = [{f for f in seen.features if ": warps is " in f} for seen in found]
    assert all(warps)
    assert warps[0] != warps[1]


CUSTOM = """
import torch
import triton
import triton.language as tl
from verifier import subject

@triton.jit
def _copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)

@torch.library.custom_op("dry_custom::copied", mutates_args=())
def copied(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    _copy[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y

@copied.register_fake
def _(x):
    return torch.empty_like(x)

@subject(op="softmax", language="triton", dtypes=("float32",), differentiable=False)
def behind_a_custom_operator(input):
    return copied(input.contiguous())
"""


def test_what_a_custom_operator_launches_is_seen_though_it_has_a_form_without_launches(tmp_path):
    file = tmp_path / "behind_a_custom_operator.py"
    file.write_text(CUSTOM)
    (seen,) = planned(subject_of(file), (3, 1000, 0)).planned
    assert "behind_a_custom_operator._copy" in seen.features
