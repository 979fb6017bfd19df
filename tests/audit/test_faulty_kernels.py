"""Every faulty kernel is caught by the check that its docstring names, on the road of every kernel."""

import ast
import re
from pathlib import Path

import pytest

from verifier.audit import causes, search, shrink
from verifier.audit.budget import BUDGETS, Budget
from verifier.audit.examination import Examination
from verifier.audit.rules import line_verdict, unexpected
from verifier.cases.extents_and_layouts import LEADING
from verifier.checks import checks
from verifier.execution import Runner
from verifier.execution.backends import backend, default_backend
from verifier.ops import op
from verifier.records.case import GIVEN_NONE, LEFT_OUT
from verifier.records.subject import PARAMETERS
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import builtin_files, load_subjects

FOLDER = Path(__file__).parents[1] / "faulty_kernels"
FILES = sorted(FOLDER.glob("*.py"))
STEMS = [f.stem for f in FILES]
CASES = 16
"""Enough for the fixed list to show every shape that the bugs need; found by trying."""
SHOWN_BY_QUICK = frozenset(["slots_of_cluster_in_use_cuda"])
"""What is seen in shapes for which a check that takes a part of so few cases has no room."""
FEW = 3
"""Cases of a check that is to see nothing of a bug."""

REFUSES = frozenset(["refuses_odd_columns", "version_read_in_inference_mode", "eps_none_in_words_refused"])
"""Those that are wrong because they refuse a call."""

# What only this check sees, of the checks that every kernel meets first.
BASIC = ("forward_error", "finite", "gradient", "layouts", "memory")
ONLY = {
    "statistics_read_again_in_backward": "repeated_calls",
    "column_stride_assumed": "layouts",
    "row_stride_of_input_for_output": "layouts",
    "rows_evenly_spaced": "layouts",
    "saved_rstd_evenly_spaced": "layouts",
    "row_stride_taken_for_column": "layouts",
    "weight_aligned_as_input_cuda": "layouts",
    "gradient_along_row_taken_for_one_number": "layouts",
    "first_row_aligned_cuda": "layouts",
    "first_axis_taken_for_last": "layouts",
    "modifies_input": "memory",
    "one_added_to_weight_in_place": "memory",
    "writes_past_the_end": "memory",
    "sums_in_random_order": "determinism",
    "sums_by_number_of_rows": "batch_invariance",
    "other_tile_for_many_rows_triton": "batch_invariance",
    "stride_of_nought_aligned_triton": "batch_invariance",
    "saved_rstd_without_eps": "saved_statistics",
    "sum_never_zero_triton": "formula",
    "nan_becomes_zero": "special_values",
    "nan_of_weight_spreads": "special_values",
    "first_tile_masked_triton": "special_values",
    "nan_of_bias_becomes_zero": "special_values",
    "nan_of_gradient_becomes_zero": "special_values",
    "nan_of_gate_becomes_zero": "special_values",
    "nan_of_tangent_clamped": "special_values",
    "infinity_of_weight_clamped": "special_values",
    "infinity_of_bias_clamped": "special_values",
    "infinity_of_gradient_clamped": "special_values",
    "nan_clamped_in_long_rows_triton": "special_values",
    "wrong_second_derivative": "gradgradcheck",
    "barrier_forgotten_cuda": "synchronization",
    "barrier_of_each_warp_cuda": "synchronization",
    "slots_of_cluster_in_use_cuda": "synchronization",
    "own_results_by_read_only_cache_cuda": "synchronization",
    "sums_undefined_lanes_triton": "memory",
    "default_dtype_left_changed": "global_state",
    "grad_mode_left_off": "global_state",
    "random_numbers_drawn": "global_state",
    "random_numbers_seeded": "global_state",
    "random_numbers_seeded_in_long_rows_triton": "global_state",
    "flag_left_set": "global_state",
    "version_read_in_inference_mode": "modes",
    "bias_forgotten_without_grad": "modes",
    "means_by_products_under_autocast": "modes",
    "weight_rounded_under_autocast": "modes",
    "eps_raised_under_autocast_to_float16": "modes",
    "sums_in_default_dtype": "modes",
    "columns_lost_in_deterministic_mode": "modes",
    "partials_of_132_processors_triton": "modes",
    "rows_lost_by_one_processor_triton": "modes",
    "bias_forgotten_in_long_rows_without_grad_triton": "modes",
    "eps_larger_in_many_rows_under_autocast_triton": "modes",
    "rows_lost_by_small_devices_triton": "modes",
    "weight_left_out_of_lone_gradient_triton": "partial_gradients",
    "eps_larger_in_first_call_triton": "repeated_calls",
    "long_rows_in_32_bits_triton": "huge_extents",
    "samples_in_32_bits_triton": "huge_extents",
    "channels_in_32_bits_triton": "huge_extents",
    "buffer_of_first_call_kept_triton": "repeated_calls",
    "gradient_of_bias_only_with_weight": "partial_gradients",
    "gradient_of_residual_only_with_input": "partial_gradients",
    "gradient_of_one_lost_in_long_rows_triton": "partial_gradients",
    "gradients_of_unused_output_taken_for_none": "partial_gradients",
    "adds_to_the_last_sums": "repeated_calls",
    "output_buffer_shared": "repeated_calls",
    "statistics_kept_on_function": "repeated_calls",
    "weight_converted_once": "repeated_calls",
    "statistics_of_input_remembered": "repeated_calls",
    "input_saved_unseen": "repeated_calls",
    "weight_saved_unseen": "repeated_calls",
    "output_saved_unseen": "context",
    "last_rows_of_wide_configuration_triton": "autotuning",
    "eps_raised_in_long_rows_triton": "forward_error",
    "eps_left_out_taken_for_another": "forward_error",
    "momentum_of_zero_replaced": "forward_error",
    "eps_none_in_words_refused": "forward_error",
}


# What only cases of one kind show to the check that is to catch it.
SHOWN_BY = {
    "eps_zero_taken_for_none": lambda case: case.eps == 0,
    "eps_none_taken_for_another": lambda case: not says_eps(case),
    "eps_left_out_taken_for_another": lambda case: "eps" in case.scalars.get(LEFT_OUT, ()),
    "eps_none_in_words_refused": lambda case: "eps" in case.scalars.get(GIVEN_NONE, ()),
    "tiny_eps_raised": lambda case: 0 < case.eps < 1e-15,
    "eps_raised_in_long_rows_triton": lambda case: case.columns > 4096 and case.eps < 1e-6,
    "last_of_several_dimensions_alone": lambda case: len(case.scalars["normalized_shape"]) > 1,
    "last_two_of_three_dimensions_alone": lambda case: len(case.scalars["normalized_shape"]) > 2,
    "one_element_left_as_it_is": lambda case: case.columns == 1,
    "sums_of_no_rows_unwritten": lambda case: not case.rows,
    "output_in_weight_dtype": lambda case: case.dtype_of("weight") != case.dtype,
    "weight_rounded_to_input_dtype": lambda case: case.dtype_of("weight") != case.dtype,
    "one_added_to_weight_in_place": lambda case: case.dtype_of("weight") == "float32",
    "gate_gradient_without_bias": lambda case: case.tensors.get("bias") is not None,
    "mask_of_sample_by_head": lambda case: (
        case.given["input"].dim() == 4 and case.given["input"].shape[0] > 1
    ),
    "diagonal_ends_in_last_column_triton": lambda case: case.columns > case.given["input"].shape[-2],
    "rows_beyond_bounded_grid_triton": lambda case: case.rows > 80_000,
    "rows_along_y_triton": lambda case: case.rows > 65535,
    "other_tile_for_many_rows_triton": lambda case: case.rows > 1900,
    "rows_beyond_four_each_triton": lambda case: case.rows > 2048,
    "last_axis_of_volumes_left_out": lambda case: case.given["input"].dim() > 4,
    "first_tile_masked_triton": lambda case: case.columns > 1024,
    "nan_clamped_in_long_rows_triton": lambda case: case.columns > 2048,
    "slots_of_cluster_in_use_cuda": lambda case: case.columns > 6000,
    "gradient_along_row_taken_for_one_number": lambda case: (
        "grad_output" in case.layouts and case.layouts["grad_output"].expanded == "columns"
    ),
    "grad_weight_in_input_dtype": lambda case: {case.dtype_of(n) for n in PARAMETERS} - {case.dtype, None},
    "bias_read_as_weight_triton": lambda case: case.mixes_dtypes,
    "sum_in_dtype_of_input": lambda case: case.dtype_of("residual") != case.dtype,
    "gradient_of_sum_in_dtype_of_input": lambda case: case.dtype_of("residual") != case.dtype,
    "nan_of_weight_spreads": lambda case: not finite(case, "weight"),
    "infinity_of_weight_clamped": lambda case: infinite(case, "weight"),
    "nan_of_bias_becomes_zero": lambda case: not finite(case, "bias"),
    "infinity_of_bias_clamped": lambda case: infinite(case, "bias"),
    "nan_of_gradient_becomes_zero": lambda case: not finite(case, "grad_output"),
    "infinity_of_gradient_clamped": lambda case: infinite(case, "grad_output"),
    "nan_of_gate_becomes_zero": lambda case: not finite(case, "gate"),
    "gate_opened_by_a_tangent": lambda case: case.elements and case.given["gate"].abs().max() > 5,
    "rows_evenly_spaced": lambda case: case.given["input"].dim() > 2 and "input" in case.layouts,
    "saved_rstd_evenly_spaced": lambda case: "rstd" in case.layouts,
    "first_axis_taken_for_last": lambda case: "reversed" in {lay.order for lay in case.layouts.values()},
    "bias_forgotten_in_long_rows_without_grad_triton": lambda case: case.columns > 4096,
    "eps_larger_in_many_rows_under_autocast_triton": lambda case: case.rows >= 3000,
    "rows_lost_by_small_devices_triton": lambda case: case.rows > 2000,
    "weight_left_out_of_lone_gradient_triton": lambda case: case.rows > 1000,
    "eps_larger_in_first_call_triton": lambda case: case.columns == 1536,
    "random_numbers_seeded_in_long_rows_triton": lambda case: case.columns > 4096,
    "long_rows_in_32_bits_triton": lambda case: case.columns > 3000,
    "buffer_of_first_call_kept_triton": lambda case: case.rows > 4096,
}


def says_eps(case):
    return not {LEFT_OUT, GIVEN_NONE} & {*case.scalars}


def finite(case, name):
    tensor = case.given.get(name)
    return tensor is None or bool(tensor.isfinite().all())


def infinite(case, name):
    tensor = case.given.get(name)
    return tensor is not None and bool(tensor.isinf().any())


def named_check(path):
    """Return the check and the verdict that the docstring promises."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    caught = re.search(r"(\w+) must catch it", text)
    if caught:
        return caught[1], None
    ending = re.search(r"a (TIMEOUT|CRASH) that must not", text)
    assert ending, f"{path.name}: the docstring does not say which check must catch it"
    return "forward_error", Verdict(ending[1])


@pytest.fixture(scope="module")
def runners():
    made = {}
    yield lambda name: made.setdefault(name, Runner(name, case_seconds=2.0 if name == "eager" else 60.0))
    for runner in made.values():
        runner.close()


@pytest.fixture(autouse=True)
def _no_reduction(monkeypatch):
    """What a finding shrinks to, and what explains it, is tested elsewhere."""
    monkeypatch.setattr(shrink, "REDUCTION_SECONDS", 0.0)
    monkeypatch.setattr(causes, "SECONDS", 0.0)
    monkeypatch.setattr(search, "DEATHS_PER_LINE", 1)


def lines_of(stem, check, runners, cases=None, only=None):
    """Examine the subjects of a faulty kernel; yields the lines of the dtypes that are run."""
    cases = cases or (BUDGETS["quick"] if stem in SHOWN_BY_QUICK else CASES)
    for subject in load_subjects(FOLDER / f"{stem}.py"):
        place, missing = default_backend(subject)
        if place is None:
            pytest.skip(missing)
        for dtype in subject.dtypes:
            refusal = backend(place).refuses(subject, dtype)
            if refusal:
                pytest.skip(refusal)
            yield Examination(
                subject=subject,
                check_name=check,
                dtype=dtype,
                runner=runners(place),
                budget=Budget(cases=cases, findings=1),
                only=only,
            ).run()


@pytest.mark.parametrize("stem", STEMS)
def test_the_named_check_catches_it_by_what_is_there_for_it(stem, runners):
    """And no basic check sees what another check is for; one process, and what is compiled, serve for all."""
    the_named_check_catches(stem, runners)
    if stem in ONLY:
        no_basic_check_sees(stem, runners)
    if stem in SHOWN_BY:
        without_its_cases_nothing_is_seen(stem, runners)


def the_named_check_catches(stem, runners):
    """A dtype in which it catches the bug is enough."""
    check, verdict = named_check(FOLDER / f"{stem}.py")
    assert check in checks(), f"{stem}: its docstring names no check that there is"
    usual = {Verdict.REFUSED} if stem in REFUSES else {Verdict.FAIL, Verdict.CRASH}
    wanted = usual if verdict is None else {verdict}
    found = []
    for line in lines_of(stem, check, runners):
        if line_verdict(line) is not Verdict.SKIPPED:
            found.append(line)
        if verdict is None and {finding.verdict for finding in unexpected(line.findings)} & wanted:
            break
    assert found, f"{check} does not apply to {stem}"
    findings = [finding for line in found for finding in unexpected(line.findings)]
    assert {finding.verdict for finding in findings} & wanted, f"{stem}: nothing that it was made for"
    assert not any("cpu tensor" in finding.outcome.message for finding in findings)  # it never ran
    assert verdict is None or {line_verdict(line) for line in found} == {verdict}


def no_basic_check_sees(stem, runners):
    only = named_check(FOLDER / f"{stem}.py")[0]
    assert only == ONLY[stem]
    for check in (name for name in BASIC if name != only):
        for line in lines_of(stem, check, runners, cases=FEW):
            assert [(check, f.outcome.message) for f in line.findings] == []


def without_its_cases_nothing_is_seen(stem, runners):
    check, _ = named_check(FOLDER / f"{stem}.py")
    found = list(lines_of(stem, check, runners, only=lambda case: not SHOWN_BY[stem](case)))
    assert [f.outcome.message for line in found for f in line.findings] == []
    assert sum(line.counts[Verdict.PASS] for line in found) > 2
    assert all(line.left_out for line in found)


def test_the_lists_of_what_is_seen_alone_name_faulty_kernels():
    assert {*ONLY, *SHOWN_BY} <= {*STEMS}


@pytest.mark.parametrize("moved", LEADING, ids=str)
def test_leading_axes_that_are_exchanged_and_those_that_are_sliced_each_show_rows_unevenly_spaced(
    moved, runners
):
    stem = "rows_evenly_spaced"
    (line,) = lines_of(
        stem,
        "layouts",
        runners,
        only=lambda case: not SHOWN_BY[stem](case) or case.layouts["input"] == moved,
    )
    assert [f.case.layouts["input"] for f in line.findings] == [moved]


@pytest.mark.parametrize("name", list(checks()))
def test_every_check_names_faulty_kernels_that_are_there_and_name_it(name):
    stems = checks()[name].CATCHES
    assert stems, f"{name} catches nothing that is planted"
    for stem in stems:
        assert stem in STEMS
        text = ast.get_docstring(ast.parse((FOLDER / f"{stem}.py").read_text(encoding="utf-8")))
        assert name in text, f"{stem}: its docstring does not name {name}"


def test_every_faulty_kernel_is_one_subject_of_the_name_of_its_file():
    for file in FILES:
        (subject,) = load_subjects(file)
        assert subject.name == file.stem
        assert op(subject.op).claimed(subject.claim) or subject.specification, (
            f"{file.name} claims nothing: no bound"
        )


def test_every_op_of_which_there_is_a_right_kernel_has_a_faulty_one():
    right, faulty = ({s.op for f in files for s in load_subjects(f)} for files in (builtin_files(), FILES))
    lacking = sorted(right - faulty)
    assert not lacking, f"no faulty kernel of {', '.join(lacking)}"
