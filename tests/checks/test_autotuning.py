"""Configurations of autotuned kernels and launches of their tuners: what is caught, and what is right."""

import pytest
from checks_support import (
    FAULTY,
    KERNELS,
    cases_of,
    failures,
    faulty,
    machine,
    outcomes_of,
    passes,
    planted,
    subject_of,
)

from verifier.checks import autotuning, check
from verifier.checks.autotuning import AFTER, configured
from verifier.execution.backends import backend
from verifier.machine.execute.tuning import TunedState
from verifier.ops import op
from verifier.records.verdict import Verdict

pytest.importorskip("triton", reason="the kernels are Triton's; Triton is not installed")

THIRD = "wrong_in_third_configuration_triton"
KEPT = "sums_kept_under_tuner_triton"
LAST = "last_rows_of_wide_configuration_triton"
NAMED = {
    THIRD: "in configuration ROWS=2, num_warps=4, num_stages=3 of _forward (",
    KEPT: AFTER,
    LAST: "in configuration ROWS=64, num_warps=4, num_stages=3 of _forward (",
}
FEW = {"count": 1, "shapes": ((5, 9),)}
MANY = {"count": 1, "shapes": ((65, 9),)}
"""One row more than the widest configuration takes."""
GRID = {"(triton.cdiv(rows, 4),)": '(lambda meta: (triton.cdiv(rows, meta["ROWS"]),))'}
TUNED = 'num_warps=warps) for warps in (4, 2, 1)], key=["columns"]'


def judged(subject, name="autotuning"):
    """Return the outcomes of a check on one small case."""
    few = MANY if subject.name == LAST else FEW
    with machine(strict=True, poison=0xFF) as place:
        return outcomes_of(subject, name, place=place, **few)


@pytest.mark.parametrize("stem", NAMED)
def test_a_faulty_configuration_and_a_sum_that_is_not_reset_are_named_and_nothing_else_is(stem):
    found = failures(judged(faulty(stem)))
    assert found
    assert all(NAMED[stem] in o.message for o in found), [o.message for o in found]


@pytest.mark.parametrize("stem", NAMED)
@pytest.mark.parametrize("name", ["forward_error", "gradient", "repeated_calls", "memory"])
def test_no_other_check_sees_them(stem, name):
    subject = faulty(stem)
    if reason := check(name).skips(subject, op(subject.op), "float32", "machine"):
        pytest.skip(reason)
    assert [o.message for o in failures(judged(subject, name))] == []


RIGHT = {
    "sums are reset": (KEPT, {TUNED: f'{TUNED}, reset_to_zero=["dw", "db"]'}),
    "sums are restored": (KEPT, {TUNED: f'{TUNED}, restore_value=["dw", "db"]'}),
    "the configuration's own hook resets": (
        KEPT,
        {
            "num_warps=warps)": "num_warps=warps, pre_hook=_reset)",
            "# The bug: no reset_to_zero.": "def _reset(given):\n"
            '    given["dw"].zero_()\n    given["db"].zero_()\n\n\n',
        },
    ),
    "configurations compile alike": (
        KEPT,
        {TUNED: 'num_stages=n) for n in (1, 2, 3)], key=["columns"], reset_to_zero=["dw", "db"]'},
    ),
    "the grid follows the configuration": (THIRD, GRID),
}


@pytest.mark.parametrize("what", RIGHT)
def test_nothing_is_found_where(what):
    stem, changes = RIGHT[what]
    found = judged(planted(changes, FAULTY / f"{stem}.py"))
    assert [o.message for o in found if o.verdict is not Verdict.PASS] == []
    assert len(found) == 3  # two configurations besides the first, and the tuner's launches
    assert [o.tried for o in found if o.tried] == [(AFTER,)]


def test_configurations_that_are_wrong_alike_are_named_in_one_finding():
    found = failures(judged(planted({"(4, 8, 2)": "(4, 1, 8, 2)"}, FAULTY / f"{THIRD}.py")))
    (output,) = [o for o in found if o.output == "output"]
    assert "in configuration ROWS=1, num_warps=4, num_stages=3 of _forward" in output.message
    assert "alike in 1 more: ROWS=2, num_warps=4, num_stages=3" in output.message


def test_a_tuner_that_the_wrapper_makes_anew_for_each_call_is_played_too():
    decorated = '@triton.autotune([triton.Config({"ROWS": rows}) for rows in (4, 8, 2)], key=["columns"])\n'
    made = planted(
        {decorated: "", "_forward[(": f"{decorated[1:-1]}(_forward)[("},
        FAULTY / f"{THIRD}.py",
    )
    assert autotuning.skips(made, op("layer_norm"), "float32", "machine") is None
    assert any(NAMED[THIRD] in o.message for o in failures(judged(made)))


def test_launches_of_other_configurations_come_before_the_one_that_counts_too():
    """One configuration leaves a mark that the first never makes, and that the wrapper stumbles over."""
    spoilt = planted(
        {
            **GRID,
            "    column = tl.arange(0, BLOCK)\n    for number": "    column = tl.arange(0, BLOCK)\n"
            "    tl.atomic_max(used, ROWS)\n    for number",
            "def _forward(x, y,": "def _forward(used, x, y,",
            "    x, y, means, rstds, w, b": "    used, x, y, means, rstds, w, b",
            "            # The bug": "            used = torch.zeros(1, dtype=torch.int32, device=x.device)\n"
            "            # The bug",
            "        ctx.save_for_backward": "            y *= (used != 8).to(y.dtype)\n"
            "        ctx.save_for_backward",
        },
        FAULTY / f"{THIRD}.py",
    )
    found = failures(judged(spoilt))
    assert any(AFTER in o.message for o in found), [o.message for o in found]


def test_what_does_not_fit_the_device_is_left_to_the_tuner_which_drops_it():
    changes = {TUNED: 'num_warps=warps) for warps in (4, 64)], key=["columns"], reset_to_zero=["dw", "db"]'}
    found = judged(planted(changes, FAULTY / f"{KEPT}.py"))
    assert not failures(found)
    (skipped,) = [o for o in found if o.verdict is Verdict.SKIPPED]
    assert "num_warps=64" in skipped.message
    assert "does not fit the device" in skipped.message
    assert len(passes(found)) == 1


def test_a_configuration_that_the_machine_cannot_run_leaves_the_verdict_open():
    changes = {TUNED: 'num_ctas=n) for n in (1, 16)], key=["columns"], reset_to_zero=["dw", "db"]'}
    found = judged(planted(changes, FAULTY / f"{KEPT}.py"))
    assert not failures(found)
    (open_,) = [o for o in found if o.verdict is Verdict.UNDECIDED]
    assert "in configuration num_warps=4, num_ctas=16, num_stages=3 of _sums" in open_.message
    assert [o.tried for o in passes(found)] == [(AFTER,)]


def test_of_several_tuners_one_is_varied_and_the_others_take_their_first():
    second = '@triton.autotune([triton.Config({}, num_warps=n) for n in (4, 2)], key=["columns"])\n'
    subject = planted(
        {**GRID, "@triton.jit\ndef _grad_input": f"{second}@triton.jit\ndef _grad_input"},
        FAULTY / f"{THIRD}.py",
    )
    (case,) = cases_of(subject, "autotuning", **FEW)
    with machine(strict=True, poison=0xFF) as name:
        place = backend(name)
        plain = configured(subject, case, backend=place, gradients=True, forced=None)
        first, other = plain.found.tuners
        forced = first.kernel, first.candidates[2]
        seen = configured(subject, case, backend=place, gradients=True, forced=forced)
    assert (first.place.function, other.place.function) == ("_forward", "_grad_input")
    assert [one.chosen for one in plain.found.tuners] == [first.candidates[:1], other.candidates[:1]]
    assert [one.chosen for one in seen.found.tuners] == [first.candidates[2:], other.candidates[:1]]


def test_what_ran_of_the_configurations_is_noted_with_what_the_pruning_left_out():
    from verifier.machine import current

    pruned = 'key=["columns"], prune_configs_by={"early_config_prune": lambda found, *_, **__: found[:2]})'
    subject = planted({**GRID, 'key=["columns"])\n@triton.jit\ndef _f': f"{pruned}\n@triton.jit\ndef _f"},
                      FAULTY / f"{THIRD}.py")  # fmt: skip
    (case,) = cases_of(subject, "autotuning", **FEW)
    with machine(strict=True, poison=0xFF) as name:
        configured(subject, case, backend=backend(name), gradients=False, forced=None)
        noted = {(words[:6], state) for _, words, state in current().reached.configurations}
    assert noted == {
        ("ROWS=4", TunedState.OPEN),
        ("ROWS=4", TunedState.RAN),
        ("ROWS=8", TunedState.OPEN),
        ("ROWS=2", TunedState.PRUNED),
    }


def test_it_costs_a_kernel_that_nobody_tunes_nothing_and_does_not_pretend_elsewhere():
    layer_norm, published = op("layer_norm"), KERNELS / "layer_norm_published_series_triton.py"
    plain = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    assert autotuning.skips(plain, layer_norm, "float32", "machine") == "none of its kernels is autotuned"
    tuned = subject_of(published)
    assert autotuning.skips(tuned, layer_norm, "float32", "machine") is None
    assert "only the machine" in autotuning.skips(tuned, layer_norm, "float32", "interpreter")
    assert autotuning.must_be_tried(tuned) == [AFTER]


SPECIFIED = """def specification(input, weight, bias, eps):
    centred = input - input.mean(-1, keepdim=True)
    y = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@subject(op="unknown", specification=specification, language="triton", dtypes=("float32",))
"""


@pytest.mark.parametrize(("factor", "verdict"), [("1.0", Verdict.PASS), ("1.0001", Verdict.FAIL)])
def test_what_no_op_describes_is_bounded_in_each_configuration_by_its_own_roundings(factor, verdict):
    source = (FAULTY / f"{THIRD}.py").read_text(encoding="utf-8")
    declared = source[source.index("@subject(") : source.index(f"def {THIRD}")]
    changes = {
        declared: SPECIFIED,
        '[triton.Config({"ROWS": rows}) for rows in (4, 8, 2)]': (
            f'[triton.Config({{"ROWS": 4, "FACTOR": f}}, num_warps=w) for w, f in ((4, 1.0), (1, {factor}))]'
        ),
        "ROWS: tl.constexpr, BLOCK": "ROWS: tl.constexpr, FACTOR: tl.constexpr, BLOCK",
        "out = centred * rstd": "out = centred * rstd * FACTOR",
    }
    with machine(strict=True, poison=0xFF) as place:
        found = outcomes_of(
            planted(changes, FAULTY / f"{THIRD}.py"), "autotuning", place=place, count=1, shapes=((5, 200),)
        )
    of_output = {o.verdict for o in found if o.output == "output"}
    assert of_output == {verdict}
    assert {o.verdict for o in found if not o.output} <= {Verdict.PASS, Verdict.SKIPPED}
