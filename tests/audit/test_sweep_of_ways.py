"""Dry runs in every way of calling: where a wrapper does otherwise in one alone is found, and no more."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checks_support import FAULTY, KERNELS, examination, machine, subject_of
from in_process import InProcess

from verifier import load
from verifier.audit import causes, sweep_of_ways
from verifier.audit import sweep as sweeping
from verifier.audit.budget import Budget
from verifier.cases.priced_shape import CASE_SECONDS, Reaching, price
from verifier.cases.recipe import Recipe, build
from verifier.checks import checks, modes, partial_gradients, repeated_calls
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.dry_ways import plan_ways
from verifier.ops import op
from verifier.records.verdict import Verdict

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
DRY = load(Path(__file__).parents[1] / "support" / "dry_kernels.py")
RIGHT = next(s for s in DRY.subjects if s.name == "right")
LIMIT = 640


def cast_to_half():
    return torch.get_autocast_dtype("cuda") == torch.float16


FLAGS = {
    "under torch.no_grad": lambda: not torch.is_grad_enabled() and not torch.is_inference_mode_enabled(),
    modes.INFERENCE: torch.is_inference_mode_enabled,
    modes.AUTOCAST: lambda: torch.is_autocast_enabled() and not cast_to_half(),
    modes.AUTOCAST_TO_HALF: lambda: torch.is_autocast_enabled() and cast_to_half(),
    "with float64 as default dtype": lambda: torch.get_default_dtype() == torch.float64,
    "with bfloat16 as default dtype": lambda: torch.get_default_dtype() == torch.bfloat16,
    modes.DETERMINISTIC: torch.are_deterministic_algorithms_enabled,
    **{
        name: lambda n=n: torch.cuda.get_device_properties(0).multi_processor_count == n
        for name, n in modes.PROCESSORS.items()
    },
}


SWEPT = sweeping.Sweep(whole=(Reaching(rows=1, columns=9),), ends=((3, 1 << 20, 0), (1 << 17, 3, 0)))


def apart(subject, monkeypatch=None):
    """Return the shapes by check; in this process, and for plain calls that were seen at two points alone."""
    if monkeypatch is None:
        found = sweeping.sweep(subject, subject.dtypes[0], "machine")
    else:
        found = SWEPT
        monkeypatch.setattr(sweep_of_ways, "Runner", InProcess)
    made, _ = sweep_of_ways._made(subject, subject.dtypes[0], found, {})
    return {check: [(s.rows, s.columns) for s in shapes] for check, shapes in made.items()}


def ways_that_differ(subject, check, point):
    """Return the ways of a check that do anything otherwise at a point, in this process."""
    like = build(op(subject.op), subject, subject.dtypes[0], Recipe(rows=4, columns=8), gradients=True)
    gradients = subject.differentiable and bool(op(subject.op).differentiable)
    of = f"{check.__name__}:dry_ways"
    found = plan_ways(
        subject, like, backend=backend("machine"), points=[point], gradients=gradients, of=of
    ).found
    return {way for way, at in found.ways.items() if any(u.more or u.less or u.other for u in at.values())}


@pytest.mark.parametrize("mode", FLAGS)
def test_a_number_that_changes_in_one_mode_or_on_one_device_beyond_a_threshold_is_found(mode, monkeypatch):
    def wrong(input, weight, eps=1e-6):
        return RIGHT.function(input, weight, eps * (2 if FLAGS[mode]() and input.shape[-1] > LIMIT else 1))

    subject = replace(RIGHT, function=wrong)
    with machine(strict=True):
        usual = ways_that_differ(RIGHT, modes, (3, LIMIT + 1, 0))
        assert ways_that_differ(subject, modes, (3, LIMIT + 1, 0)) == usual | {mode}
        assert apart(subject, monkeypatch) == {"modes": [(3, LIMIT + 1)]}


def test_an_operation_of_torch_that_is_left_out_in_a_mode_is_seen(monkeypatch):
    def wrong(input, weight, eps=1e-6):
        out = RIGHT.function(input, weight, eps)
        return out if not torch.is_grad_enabled() and input.shape[-1] > LIMIT else out * 1.0

    with machine(strict=True):
        assert apart(replace(RIGHT, function=wrong), monkeypatch) == {"modes": [(3, LIMIT + 1)]}


def test_another_tensor_of_the_same_form_is_seen(monkeypatch):
    def wrong(input, weight, eps=1e-6):
        other = torch.ones_like(weight)
        swapped = torch.is_inference_mode_enabled() and input.shape[-1] > LIMIT
        return RIGHT.function(input, other if swapped else weight, eps)

    with machine(strict=True):
        assert apart(replace(RIGHT, function=wrong), monkeypatch) == {"modes": [(3, LIMIT + 1)]}


def test_an_error_in_a_mode_is_seen(monkeypatch):
    def wrong(input, weight, eps=1e-6):
        if torch.is_autocast_enabled() and input.shape[-1] > LIMIT:
            raise KeyError(LIMIT)
        return RIGHT.function(input, weight, eps)

    with machine(strict=True):
        assert apart(replace(RIGHT, function=wrong), monkeypatch) == {"modes": [(3, LIMIT + 1)]}


@pytest.mark.parametrize("stem", ["rms_norm_triton", "softmax_triton", "layer_norm_welford_cuda"])
def test_kernels_that_do_the_same_in_every_way_have_no_shapes_of_their_own(stem):
    subject = subject_of(KERNELS / f"{stem}.py")
    assert apart(subject) == {}


@pytest.mark.parametrize(
    ("stem", "check", "shape"),
    [
        ("eps_larger_in_first_call_triton", repeated_calls, (3, 1536)),
        ("buffer_of_first_call_kept_triton", repeated_calls, (4097, 3)),
        ("weight_left_out_of_lone_gradient_triton", partial_gradients, (1001, 3)),
        ("rows_lost_by_small_devices_triton", modes, (2001, 3)),
    ],
)
def test_calls_of_a_fresh_process_choices_of_gradients_and_devices_have_the_least_shapes_that_differ(
    stem, check, shape
):
    assert apart(subject_of(FAULTY / f"{stem}.py")) == {check.NAME: [shape]}


def test_a_wrapper_that_cannot_be_run_dry_and_one_without_kernels_have_none():
    reading = next(s for s in DRY.subjects if s.name == "reads_numbers")
    assert sweep_of_ways.called_apart(reading, "float32", "machine") == {}
    assert sweep_of_ways.called_apart(subject_of(KERNELS / "softmax_torch.py"), "float32", "eager") == {}


def test_the_ways_of_a_dry_run_are_those_that_a_pass_asks_for():
    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    assert {c.NAME for c in checks().values() if c in sweep_of_ways.checks_with_ways()} == {
        *("modes", "partial_gradients", "repeated_calls")
    }
    place = backend("machine")
    assert {*modes.MODES, *modes.PROCESSORS} == modes.dry_ways(subject, place).keys()
    assert {*partial_gradients.must_be_tried(subject)} == partial_gradients.dry_ways(subject, place).keys()
    assert repeated_calls.dry_ways(subject, place).keys() <= {*repeated_calls.must_be_tried(subject)}


# -- what becomes of them --------------------------------------------------------------------------------


@pytest.fixture
def known_shapes(monkeypatch):
    """Let every sweep find a shape that modes needs, and one that no budget has room for."""
    few = Reaching(rows=2, columns=77, seconds=0.1)
    dear = Reaching(rows=9, columns=1 << 20, seconds=CASE_SECONDS + price(9, 1 << 20))
    monkeypatch.setattr("verifier.audit.examination.sweep", lambda *_: SWEPT)
    monkeypatch.setattr("verifier.audit.examination.called_apart", lambda *_: {"modes": (few, dear)})
    return few, dear


def test_such_shapes_come_first_in_every_dtype_and_those_without_room_are_named(known_shapes):
    few, dear = known_shapes
    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    for dtype in subject.dtypes[:2]:
        one = examination(subject, "modes", dtype, "machine", budget=Budget(cases=25))
        line, search, _ = one._prepared
        assert [shape for shape in search.steering.shapes if shape not in SWEPT.whole] == [few]
        assert any(f"{dear}: about" in note for note in line.notes)
        assert (str(dear), dear.seconds) in one.reach.left_out
    other = examination(subject, "repeated_calls", None, "machine", budget=Budget(cases=25))
    assert few not in other._prepared[1].steering.shapes


def test_the_shapes_are_kept_and_made_anew_when_a_source_changes(tmp_path, monkeypatch):
    def anew():
        monkeypatch.setattr(sweep_of_ways, "_known", {})
        return sweep_of_ways.called_apart(subject_of(file), "float32", "machine")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sweep_of_ways, "sweep", lambda *_: SWEPT)
    file = tmp_path / "rows_lost_by_small_devices_triton.py"
    text = (FAULTY / file.name).read_text()
    file.write_text(text)
    first = anew()
    assert first["modes"]
    make, made = sweep_of_ways._made, []
    monkeypatch.setattr(sweep_of_ways, "_made", lambda *args: made.append(args) or make(*args))
    assert anew() == first
    assert not made
    for kept in (tmp_path / "norm-verifier" / "sweeps").iterdir():
        kept.write_text('{"sources": {}, "apart": [1]}')
    assert anew() == first
    assert len(made) == 1
    file.write_text(text + "# changed\n")
    assert anew() == first
    assert len(made) == 2


def test_a_fresh_child_knows_nothing_of_the_calls_before():
    subject = subject_of(FAULTY / "eps_larger_in_first_call_triton.py")
    case = build(op(subject.op), subject, "float32", Recipe(rows=2, columns=1536), gradients=False)
    with Runner("machine") as runner:
        answers = [runner.run(subject, case, fresh=fresh) for fresh in (False, False, True, False)]
    first, again, anew, last = (seen.outputs["output"] for seen in answers)
    assert torch.equal(first, anew)
    assert not torch.equal(first, again)
    assert torch.equal(again, last), "the usual child answers on"


def test_a_quick_search_finds_what_is_wrong_in_a_mode_and_beyond_a_threshold_alone(monkeypatch):
    monkeypatch.setattr(causes, "SECONDS", 0.0)  # found is enough here
    subject = subject_of(FAULTY / "eps_larger_in_many_rows_under_autocast_triton.py")
    with Runner("machine") as runner:
        budget = Budget(cases=25, findings=1)
        one = examination(subject, "modes", "float32", "machine", budget=budget, shrinks=False)
        one.runner = runner
        line = one.run()
    assert [finding.verdict for finding in line.findings] == [Verdict.FAIL]
    assert line.findings[0].case.rows >= 3000
