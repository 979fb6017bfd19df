"""How single checks build their cases, their tables and their messages."""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
import torch
from checks_support import (
    KERNELS,
    SUPPORT,
    cases_of,
    examination,
    failures,
    faulty,
    machine,
    outcomes_of,
    passes,
    subject_of,
)

from strategies.layouts import Layout
from verifier import load
from verifier.cases.fixed_list import covering
from verifier.cases.plan import Plan
from verifier.cases.recipe import assemble
from verifier.checks import batch_invariance, check, gradgradcheck, large_offsets, memory, metamorphic
from verifier.checks.support.bits import bit_numbers, differing
from verifier.checks.support.session import Session
from verifier.execution.backends import backend
from verifier.execution.backends.machine import BACKEND as MACHINE
from verifier.ops import op
from verifier.records.observation import Deviation, Observation
from verifier.records.subject import Domain
from verifier.records.verdict import Verdict

RIGHT = SUPPORT / "right_kernel.py"


# -- comparing -------------------------------------------------------------------------------------


def test_bits_tell_zeros_apart_and_know_a_nan_again():
    values = torch.tensor([0.0, -0.0, nan])
    numbers = bit_numbers(values)
    assert numbers[0] != numbers[1]
    assert (numbers == bit_numbers(values.clone())).all()


def test_a_difference_names_the_first_element():
    a, b = torch.zeros(2, 2), torch.zeros(2, 2)
    b[1, 0] = 1.0
    message = differing("output", {"output": a}, {"output": b}, "between runs")
    assert message is not None
    assert "1 of 4 elements, first at [1, 0]: 0.0 and 1.0" in message


def test_equal_results_and_absent_ones_do_not_differ():
    a = torch.ones(3)
    assert differing("output", {"output": a}, {"output": a.clone()}, "") is None
    assert differing("mean", {"output": a}, {"output": a}, "") is None
    assert differing("mean", {"mean": None}, {"mean": a}, "") is not None


# -- batch invariance ------------------------------------------------------------------------------


def test_the_row_axis_is_found_and_arranged():
    (case,) = cases_of(subject_of(RIGHT), "batch_invariance", count=1)
    places = batch_invariance.row_places(op(case.op), case)
    assert places is not None
    other = batch_invariance.arranged(op(case.op), case, places, [2, 0, 2])
    x = case.given["input"].reshape(case.rows, -1)
    assert torch.equal(other.given["input"].reshape(3, -1), x[[2, 0, 2]])
    assert other.rows == 3
    assert other.columns == case.columns


def test_rows_are_followed_to_where_they_went():
    (case,) = cases_of(subject_of(RIGHT), "batch_invariance", count=1)
    places = batch_invariance.row_places(op(case.op), case)
    index = [3, 1, 1]
    other = batch_invariance.arranged(op(case.op), case, places, index)
    numbers = batch_invariance._row_numbers(op(case.op), other, case, [(places, index)])
    assert list(numbers // case.columns) == index


def test_rows_of_an_inner_axis_are_followed_without_its_last_places():
    case = next(
        c for c in cases_of(subject_of(RIGHT), "batch_invariance", count=60)
        if c.given["input"].dim() == 3 and min(c.given["input"].shape) > 1
    )  # fmt: skip
    axes = op(case.op).unordered(case).values()
    places = next(places for places in axes if ("input", 1) in places)
    batch, sequence, _ = case.given["input"].shape
    other = batch_invariance.arranged(op(case.op), case, places, [0])
    numbers = batch_invariance._row_numbers(op(case.op), other, case, [(places, [0])])
    assert list(numbers // case.columns) == [sequence * place for place in range(batch)]


def numbers_of_rows(case):
    """Return how many rows a case is run with besides its own number."""
    places, found = batch_invariance.row_places(op(case.op), case), []
    for taken in batch_invariance._arrangements(op(case.op), case, places) if places else ():
        other = case
        for axes, index in taken:
            other = batch_invariance.arranged(op(case.op), other, axes, index)
        found.append(other.rows)
    return found


def test_the_cases_together_sweep_the_numbers_of_rows():
    cases = cases_of(subject_of(RIGHT), "batch_invariance", count=60)
    tried = {n for case in cases for n in numbers_of_rows(case)}
    assert {1, 2} <= tried
    assert any(n > 500 for n in tried)
    assert len(tried & {*batch_invariance.COUNTS}) > len(batch_invariance.COUNTS) / 2


@pytest.mark.parametrize("stem", ["layer_norm_torch", "instance_norm_torch", "masked_softmax_torch"])
def test_every_case_of_several_rows_is_run_with_one_whatever_axes_hold_them(stem):
    (subject,) = load(KERNELS / f"{stem}.py").subjects
    several = [c for c in cases_of(subject, "batch_invariance", count=60) if c.rows > 1]
    ranks = {c.given["input"].dim() for c in several}
    assert len(ranks) > 1
    assert all(1 in numbers_of_rows(case) for case in several)
    assert all(
        min(found) > 0 < len({*found} - {1, case.rows})
        for case in several
        if (found := numbers_of_rows(case))
    )


def test_the_axis_that_is_varied_is_longer_than_one_where_one_is():
    (subject,) = load(KERNELS / "instance_norm_torch.py").subjects
    several = [c for c in cases_of(subject, "batch_invariance", count=60) if c.rows > 1]
    axes = {batch_invariance.row_places(op(c.op), c)[0][1] for c in several}
    assert axes == {0, 1}
    assert all(batch_invariance._extent(c, batch_invariance.row_places(op(c.op), c)) > 1 for c in several)


def test_one_row_that_is_promised_alone_is_compared_with_nothing():
    subject = subject_of(RIGHT).differing(domain=Domain(max_rows=1))
    assert "batch_invariance" in subject.guarantees
    assert not outcomes_of(subject, "batch_invariance", count=3, shapes=((1, 8),), max_rows=1)


def test_a_single_row_without_a_row_axis_is_left_out():
    subject = subject_of(RIGHT)
    (case,) = cases_of(subject, "batch_invariance", count=1, shapes=((1, 8),), max_rows=1)
    flat = replace(
        case, tensors={n: t.reshape(8) if n in {"input", "grad_output"} else t for n, t in case.given.items()}
    )
    assert batch_invariance.row_places(op(case.op), flat) is None


# -- special values --------------------------------------------------------------------------------


def _bad(name, x, values):
    """Return the words of the table's lines that the values do not meet."""
    x, values = np.array(x), np.array(values)
    rows = op(name).special({}, x)
    return [words for words, where, meets in rows if (where & ~meets(values)).any()]


@pytest.mark.parametrize(
    ("name", "x", "values"),
    [
        ("layer_norm", [[nan, 1.0]], [[nan, nan]]),
        ("layer_norm", [[inf, 1.0]], [[nan, -inf]]),
        ("layer_norm", [[1.0, 2.0]], [[5.0, 6.0]]),  # a finite row is no matter of the table
        ("rms_norm", [[inf, 1.0]], [[nan, 0.0]]),
        ("softmax", [[-inf, 1.0]], [[0.0, 1.0]]),
        ("softmax", [[-inf, -inf]], [[nan, nan]]),
        ("log_softmax", [[-inf, 1.0]], [[-inf, 0.0]]),
    ],
)
def test_the_table_accepts_what_the_definition_gives(name, x, values):
    assert not _bad(name, x, values)


@pytest.mark.parametrize(
    ("name", "x", "values"),
    [
        ("layer_norm", [[nan, 1.0]], [[nan, 1.0]]),
        ("layer_norm", [[inf, 1.0]], [[nan, 0.0]]),
        ("rms_norm", [[inf, 1.0]], [[inf, 0.0]]),
        ("rms_norm", [[inf, 1.0]], [[nan, 1.0]]),
        ("softmax", [[inf, 1.0]], [[1.0, 0.0]]),
        ("softmax", [[-inf, -inf]], [[0.5, 0.5]]),
        ("softmax", [[nan, 1.0]], [[0.0, 1.0]]),
    ],
)
def test_the_table_refuses_plausible_numbers(name, x, values):
    assert _bad(name, x, values)


def test_an_empty_input_may_be_refused_only_outside_the_domain():
    subject = subject_of(RIGHT)
    empty = cases_of(subject, "special_values", count=1, shapes=((4, 0),))[0]
    examining = examination(subject, "special_values")
    finding, outcomes = examining.examine_case(empty)
    assert outcomes[0].verdict is Verdict.REFUSED
    assert finding is None
    promised = replace(examining, subject=subject.differing(domain=None))
    assert promised.examine_case(empty)[0] is not None


def test_an_output_of_another_shape_of_an_empty_input_is_called_output():
    kept = subject_of(RIGHT).differing(differentiable=False)
    wrong = kept.differing(function=lambda *_, **__: (torch.zeros(4), torch.zeros(4), torch.ones(4)))
    (empty,) = cases_of(kept, "special_values", count=1, shapes=((4, 0),))
    outcome = examination(wrong, "special_values").judge(empty)[0][0]
    assert (outcome.verdict, outcome.output) == (Verdict.FAIL, "output")
    assert outcome.message == "output has shape (4,); (4, 0) is expected"


@pytest.mark.parametrize("weight", [1.0, 6e4])
def test_weights_that_carry_an_element_out_of_range_break_no_promise_about_inputs(weight):
    subject = replace(subject_of(RIGHT), domain=Domain(max_abs=8.0))
    numbers = {"input": [[0.0, 4.0, 1.0]], "weight": [1.0, weight, 1.0], "bias": [0.0, 0.0, 0.0]}
    tensors = {name: torch.tensor(values, dtype=torch.float16) for name, values in numbers.items()}
    scalars = {"eps": 1e-5, "normalized_shape": (3,)}
    case = assemble(op("layer_norm"), "float16", tensors, scalars, {}, hazard="ordinary", origin="test")
    for check_name in ("metamorphic", "claim"):
        outcomes, _ = examination(subject, check_name, "float16").judge(case)
        assert {o.verdict for o in outcomes} == {Verdict.PASS}
        assert any(o.uncovered for o in outcomes) == (weight > 1)


# -- metamorphic -----------------------------------------------------------------------------------


def test_a_shift_is_used_only_where_it_rounds_nothing():
    (case,) = cases_of(subject_of(RIGHT), "metamorphic", "float16", count=1)
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float16)
    exact = replace(case, tensors={**case.tensors, "input": x})
    assert metamorphic._shifted(exact, 1.0) is not None
    rounding = replace(case, tensors={**case.tensors, "input": x + torch.tensor(2.0**-10).half()})
    assert metamorphic._shifted(rounding, 32.0) is None


def test_scaling_beyond_the_format_is_left_out():
    (case,) = cases_of(subject_of(RIGHT), "metamorphic", "float16", count=1)
    large = replace(case, tensors={**case.tensors, "input": torch.full((1, 2), 60000.0).half()})
    assert metamorphic._scaled(large, 8.0) is None
    assert metamorphic._scaled(large, 0.25) is not None


@pytest.mark.parametrize("words", ["adding", "multiplying", "reversing"])
def test_each_identity_is_tried(words):
    subject = subject_of(RIGHT)
    cases = cases_of(subject, "metamorphic", count=4)
    found = [i.words for case in cases for i in metamorphic._identities(op(case.op), subject, case)]
    assert any(text.startswith(words) for text in found)


# -- claim -----------------------------------------------------------------------------------------


def test_a_false_claim_is_told_what_it_behaves_like():
    bad = failures(outcomes_of(faulty("welford_claimed_textbook_computed"), "claim", count=15))
    assert any("textbook" in o.message for o in bad)


def test_without_a_tree_nothing_is_claimed_about_the_algorithm():
    from verifier import any_order
    from verifier.records.subject import Trees

    subject = faulty("welford_claimed_textbook_computed").differing(trees=Trees(statistics=any_order()))
    assert "no tree" in _claim().skips(subject, op("layer_norm"), "float32", "eager")


def _claim():
    from verifier.checks import check

    return check("claim")


# -- second derivatives ----------------------------------------------------------------------------


def test_torch_differentiates_its_layer_norm_twice_rightly():
    (subject,) = load(KERNELS / "layer_norm_torch.py").subjects
    found = outcomes_of(subject, "gradgradcheck", "float64", count=4)
    assert found
    assert not failures(found)
    assert all(o.evidence.error < 1e-3 * max(1.0, o.evidence.allowed) for o in found)


def test_the_tolerance_of_second_derivatives_is_far_below_them():
    bad = failures(outcomes_of(faulty("wrong_second_derivative"), "gradgradcheck", count=4))
    assert all(o.evidence.error > 1e3 * o.evidence.allowed for o in bad)


@pytest.mark.parametrize("promised", [True, False])
def test_an_unclear_error_is_forbidden_by_the_guarantee_alone(promised):
    from verifier.records.observation import Observation

    guarantees = frozenset({"gradgradcheck"} if promised else ())
    subject = subject_of(RIGHT).differing(guarantees=guarantees)
    seen = Observation(
        status="ok", message="RuntimeError: got None", found=gradgradcheck.SecondDerivatives(unclear=True)
    )
    outcome = gradgradcheck._unclear(subject, seen)
    assert outcome.verdict is (Verdict.CRASH if promised else Verdict.SKIPPED)
    assert (outcome.measured is None) is promised


@pytest.mark.parametrize("stem", ["second_derivative_missing", "wrong_second_derivative"])
def test_what_nobody_guarantees_of_second_derivatives_is_measured_and_fails_nothing(stem):
    subject = faulty(stem)
    unpromised = subject.differing(guarantees=subject.guarantees - {"gradgradcheck"})
    promised, measured = (outcomes_of(s, "gradgradcheck", count=2) for s in (subject, unpromised))
    assert failures(promised)
    assert not failures(measured)
    assert not passes(measured)
    texts = [o.message for o in failures(promised)]
    texts += [o.measured.text for o in measured if "not guaranteed" in o.measured.text]
    assert len(texts) > len(failures(promised))
    assert all("once_differentiable" in text for text in texts)


@pytest.mark.parametrize(
    ("error", "clear"),
    [
        (RuntimeError("trying to differentiate twice a function marked with @once_differentiable"), True),
        (NotImplementedError("no"), True),
        (RuntimeError("Expected a proper Tensor but got None"), False),
        (KeyError("second derivative"), False),
    ],
)
def test_a_refusal_says_what_is_refused(error, clear):
    assert (gradgradcheck._refused(error) is not None) is clear


def test_directions_of_different_turns_differ():
    first, second = (gradgradcheck.integers((2, 4), turn) for turn in (1, 2))
    assert not torch.equal(first, second)
    assert int(first.abs().max()) <= gradgradcheck.LARGEST_WEIGHT


# -- far rows --------------------------------------------------------------------------------------


def test_far_rows_lie_beyond_32_bits_and_are_not_committed():
    layout = Layout(row_padding=2**30)
    values = torch.arange(9, dtype=torch.float16).reshape(3, 3)
    placed = large_offsets._place("input", layout, values, guard_elements=64, poison="nan")
    assert placed.tensor.stride(0) * 2 >= 2**31
    assert torch.equal(placed.tensor, values)
    assert not list(placed.value_damage())
    placed.tensor[2, 1] = 70.0
    assert list(placed.value_damage())


def test_near_rows_lie_where_they_usually_do():
    placed = large_offsets._place(
        "input", Layout(row_padding=3), torch.ones(3, 3), guard_elements=64, poison="nan"
    )
    assert placed.tensor.stride() == (6, 1)
    assert not list(placed.damage())


@pytest.mark.parametrize("name", ["memory", "large_offsets"])
def test_an_input_that_was_written_is_named_by_its_name_alone(name):
    subject, text = subject_of(RIGHT), "weight is an input and was written: 1 element"
    (case,) = cases_of(subject, name, "float32", count=1, shapes=((3, 33),))
    written = Observation(
        status="ok",
        damage=(Deviation("weight", text),),
        found=memory.PoisonedRuns(proved=(), open=(), undefined=()),
    )
    session = Session(
        subject=subject,
        case=case.with_layouts({"input": Layout(row_padding=2**30)}),
        backend="eager",
        setting=backend("eager").setting(subject, "float32"),
        run=lambda *_, **__: written,
    )
    outcome = check(name).check(session)[0]
    assert (outcome.output, outcome.message) == ("weight", text)


def test_a_tensor_that_cannot_be_mapped_is_a_reason_and_no_failure(monkeypatch):
    monkeypatch.setattr(large_offsets, "MOST_BYTES", 2**20)
    found = outcomes_of(subject_of(RIGHT), "large_offsets", count=1)
    assert [o.verdict for o in found] == [Verdict.SKIPPED]
    assert "not enough memory" in found[0].message


def test_a_domain_without_padded_rows_is_left_alone():
    from verifier import Domain
    from verifier.checks import check

    subject = subject_of(RIGHT).differing(
        guarantees=frozenset(), domain=Domain(layouts=("contiguous",), max_rows=4)
    )
    assert check("large_offsets").skips(subject, op("layer_norm"), "float32", "eager")


# -- plans and places ------------------------------------------------------------------------------


def test_a_plan_without_parameters_gives_none():
    subject = subject_of(RIGHT)
    recipes = [r for _, r in zip(range(40), covering(subject, Plan(parameters=False)), strict=False)]
    assert all(r.weight is None and r.bias is None for r in recipes)


def test_a_plan_of_one_hazard_still_leaves_parameters_out_now_and_then():
    subject = subject_of(RIGHT)
    recipes = [r for _, r in zip(range(15), covering(subject, Plan(hazards=("ordinary",))), strict=False)]
    assert {(r.weight is None, r.bias is None) for r in recipes} >= {(False, False), (True, True)}


def test_a_plan_takes_its_placements_in_turn():
    far = ((("input", Layout(row_padding=5)),), (("weight", Layout(column_step=2)),))
    recipes = [r for _, r in zip(range(4), covering(subject_of(RIGHT), Plan(placements=far)), strict=False)]
    assert [r.layouts for r in recipes[:2]] == [far[0], far[1]]
    assert {r.layouts for r in recipes} == set(far)


def test_a_varied_machine_is_the_usual_one_afterwards():
    from verifier.machine import current

    with machine():
        usual = current().machine
        with MACHINE.varied(schedule_seed=3):
            assert current().machine.schedule_seed == 3
        assert current().machine is usual
