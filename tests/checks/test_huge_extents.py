"""Chosen rows of tensors with over 2^31 elements: wrong offsets are found, nothing right or unknown is."""

import importlib.util
from pathlib import Path

import pytest
from checks_support import (
    FAULTY,
    KERNELS,
    cases_of,
    examination,
    failures,
    machine,
    machine_runner,
    planted,
    subject_of,
)

from strategies.values import Values
from verifier import Domain, load
from verifier.audit import examination as audits
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.reach_of_subjects import reach_of_lines
from verifier.audit.request import BUDGETS
from verifier.audit.sweep import sweep
from verifier.cases.priced_shape import Reaching
from verifier.cases.recipe import Recipe, build
from verifier.cases.steering import steered
from verifier.checks import check
from verifier.checks.huge_extents import COLUMNS, COLUMNS_IN_CHANNELS, LOOKED_AT, ChosenExtents
from verifier.checks.large_offsets import far_columns
from verifier.checks.support.untouched_pages import untouched_pages
from verifier.execution.backends import backend
from verifier.machine.device import launch
from verifier.ops import op
from verifier.records.verdict import Verdict
from verifier.subjects.libraries import library_files

pytest.importorskip("triton")

SOURCE = FAULTY / "rows_in_32_bits_triton.py"
HUGE = ChosenExtents.huge(COLUMNS)
LAUNCHED = "row = tl.program_id(0)"
GIBIBYTES_TOUCHED = 1.5


def judged(subject, count=1, dtype="float16", **changes):
    """Return the outcomes of huge_extents on the first cases."""
    with machine(poison=0xFF):
        examining = examination(subject, "huge_extents", dtype, "machine")
        cases = cases_of(subject, "huge_extents", dtype, count, **changes)
        return [outcome for case in cases for outcome in examining.judge(case)[0]]


def test_an_offset_in_32_bits_is_found_at_the_first_row_that_it_does_not_reach():
    (found,) = judged(subject_of(SOURCE))
    assert found.verdict is Verdict.CRASH
    assert found.machine_finding == "out_of_bounds"
    assert f"block ({HUGE.rows[-2]}, 0, 0)" in found.message
    assert found.message.endswith(f"in chosen rows of a tensor of {HUGE.extent} x {COLUMNS}")
    assert "source rows_in_32_bits_triton.py:" in found.message


def test_large_offsets_does_not_see_it_since_the_wrapper_copies():
    subject = subject_of(SOURCE)
    with machine(poison=0xFF):
        examining = examination(subject, "large_offsets", "float16", "machine")
        (case,) = cases_of(subject, "large_offsets", "float16", 1)
        assert not failures(examining.judge(case)[0])


def test_pages_that_nobody_touches_need_no_memory():
    pages = untouched_pages(2**40)
    pages[2**39] = 1
    assert (pages[2**39], pages[0]) == (1, 0)


def test_large_offsets_tries_kernels_of_long_rows_too():
    offset = "\n    x += row * x_row\n    dy +="
    cast = {f"tl.program_id(0).to(tl.int64){offset}": f"tl.program_id(0){offset}"}
    wrong = planted(cast, KERNELS / "layer_norm_two_pass_triton.py")
    with machine(poison=0xFF):
        examining = examination(wrong, "large_offsets", "float32", "machine")
        plan = examining.check.plan(wrong, op("layer_norm"))
        recipes, _ = steered(wrong, plan, [Reaching(rows=1, columns=16385)])
        case = build(op("layer_norm"), wrong, "float32", recipes[0], gradients=True)
        (found,) = examining.judge(case)[0]
    assert found.machine_finding == "out_of_bounds"
    assert "_backward_input" in found.message


def test_large_offsets_lays_the_columns_of_long_rows_far_apart_too():
    tile = "column = tl.program_id(0)"
    rest = " * BLOCK + tl.arange(0, BLOCK)\n    inside = column < columns\n    part_dw"
    wrong = planted({f"{tile}.to(tl.int64){rest}": f"{tile}{rest}"}, KERNELS / "rms_norm_triton.py")
    with machine(poison=0xFF):
        examining = examination(wrong, "large_offsets", "float32", "machine")
        plan = examining.check.plan(wrong, op("rms_norm"))
        judged = []
        for recipes in steered(wrong, plan, [Reaching(rows=1, columns=16385)]):
            case = build(op("rms_norm"), wrong, "float32", recipes[0], gradients=True)
            judged.append(examining.judge(case)[0])
    rows_apart, (found,) = judged
    assert {outcome.verdict for outcome in rows_apart} == {Verdict.PASS}
    assert found.machine_finding == "out_of_bounds"
    assert "_backward_columns" in found.message


def test_large_offsets_lays_the_channels_of_a_batch_norm_far_apart_too():
    head = "channel = tl.program_id(0)"
    rest = "\n    columns = samples * space\n    count = tl.cast(columns, ACCUMULATE)\n    mean = tl.load"
    wrong = planted({f"{head}.to(tl.int64){rest}": f"{head}{rest}"}, KERNELS / "batch_norm_triton.py")
    far = far_columns(op("batch_norm"))
    recipe = Recipe(rows=3, columns=33, layouts=(("input", far), ("grad_output", far)))
    case = build(op("batch_norm"), wrong, "float16", recipe, gradients=True)
    with machine(poison=0xFF):
        (found,) = examination(wrong, "large_offsets", "float16", "machine").judge(case)[0]
    assert found.machine_finding == "out_of_bounds"
    assert "_backward" in found.message


def test_the_same_kernel_with_a_row_in_64_bits_passes():
    right = planted({LAUNCHED: f"{LAUNCHED}.to(tl.int64)"}, SOURCE)
    assert {o.verdict for o in judged(right)} == {Verdict.PASS}


def test_a_row_that_is_written_elsewhere_is_wrong_where_it_should_be():
    wrong = "row = tl.program_id(0).to(tl.int64)\n    target = (row * columns).to(tl.uint32) % 2147483648"
    changes = {LAUNCHED: wrong, "tl.store(y + row * columns": "tl.store(y + target"}
    found = failures(judged(planted(changes, SOURCE)))
    assert [(o.verdict, o.output) for o in found] == [(Verdict.FAIL, "output")]


def test_the_corrected_layer_norm_passes_forward_and_says_what_of_it_is_not_judged():
    outcomes = judged(subject_of(KERNELS / "layer_norm_two_pass_triton.py"))
    assert {o.verdict for o in outcomes} == {Verdict.PASS, Verdict.SKIPPED}
    (left_out,) = [o for o in outcomes if o.verdict is Verdict.SKIPPED]
    assert left_out.message.startswith("gradients of huge tensors are not judged: ")
    assert "a grid of (1024, 1, 1) does not follow the rows (kernel _backward_rows)" in left_out.message
    # In a tensor of fewer rows the same grid does, and its blocks have several.
    assert {o.output for o in outcomes} >= {"output", "grad_input", "grad_weight", "grad_bias"}


def test_the_corrected_layer_norm_without_its_cast_is_found():
    cast = "row = tl.program_id(0).to(tl.int64)"
    mutant = planted({cast: cast.removesuffix(".to(tl.int64)")}, KERNELS / "layer_norm_two_pass_triton.py")
    (found,) = failures(judged(mutant))
    assert found.machine_finding == "out_of_bounds"


def resident(what):
    """Return kibibytes of this process's memory, VmRSS now or VmHWM at its peak."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{what}:"))


def peak_from_here():
    """Count the peak of memory anew, since other tests ran in this process; return what is held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def test_softmax_passes_with_its_gradient_in_little_memory():
    before = peak_from_here()
    outcomes = judged(subject_of(KERNELS / "softmax_triton.py"))
    assert {(o.output, o.verdict) for o in outcomes} == {
        ("output", Verdict.PASS),
        ("grad_input", Verdict.PASS),
    }
    assert resident("VmHWM") - before < GIBIBYTES_TOUCHED * 2**20


@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed")
def test_liger_s_softmax_passes():
    norms = {s.name: s for s in load(library_files()["liger"]).subjects}
    assert {o.verdict for o in judged(norms["liger_softmax"])} == {Verdict.PASS}


SUMS = FAULTY / "sums_by_atomics_triton.py"
ADDED = "tl.atomic_add(dw + column, grad * hat, mask=inside)"
COLUMN = "    column = tl.arange(0, BLOCK)\n    inside = column < columns\n"
EVERY = {"output", "grad_input", "grad_weight"}


def verdicts_of(outcomes):
    return {(o.output, o.verdict) for o in outcomes}


def test_sums_over_the_rows_of_a_huge_tensor_are_judged():
    found = judged(subject_of(SUMS), dtype="float32")
    assert verdicts_of(found) == {(name, Verdict.PASS) for name in EVERY}


def test_a_sum_that_loses_the_rows_behind_2_31_elements_is_found_and_nothing_else():
    lost = ADDED.replace("grad * hat", "tl.where(row.to(tl.int32) * columns >= 0, grad * hat, 0.0)")
    found = judged(planted({ADDED: lost}, SUMS), dtype="float32")
    assert verdicts_of(found) - {(name, Verdict.PASS) for name in EVERY} == {("grad_weight", Verdict.FAIL)}
    assert len(found) == len(EVERY)


def test_a_sum_to_which_rows_of_zeros_add_is_not_judged():
    counting = ADDED.replace("grad * hat", "grad * hat + 1.0")
    found = judged(planted({ADDED: counting}, SUMS), dtype="float32")
    (left_out,) = [o for o in found if o.verdict is Verdict.SKIPPED]
    assert left_out.message.startswith(
        "sums of columns of huge tensors are not judged: blocks depend on each"
    )
    assert verdicts_of(found) - {("", Verdict.SKIPPED)} == {
        (n, Verdict.PASS) for n in EVERY - {"grad_weight"}
    }


def test_a_kernel_that_joins_parts_runs_whole_beside_blocks_of_chosen_rows():
    parts = {
        "tl.atomic_add(dw + column, grad * hat, mask=inside)  # the bug: it promises one order": (
            "tl.atomic_add(parts + column, grad * hat, mask=inside)\n\n\n@triton.jit\n"
            "def _join(parts, dw, columns, BLOCK: tl.constexpr):\n"
            "    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
            "    inside = column < columns\n"
            "    tl.store(dw + column, tl.load(parts + column, mask=inside, other=0.0), mask=inside)"
        ),
        "rstds, dx, dw, columns": "rstds, dx, parts, columns",
        "        return dx, total.to(w.dtype), None": (
            "            joined = torch.empty_like(total)\n"
            "            _join[(triton.cdiv(columns, 128),)](total, joined, columns, BLOCK=128)\n"
            "            total = joined\n"
            "        return dx, total.to(w.dtype), None"
        ),
    }
    found = judged(planted(parts, SUMS), dtype="float32")
    assert verdicts_of(found) == {(name, Verdict.PASS) for name in EVERY}


def test_a_kernel_that_goes_through_all_rows_is_not_waited_for():
    stepping = {
        f"    row = tl.program_id(0).to(tl.int64)\n{COLUMN}    rstd": (
            f"{COLUMN}"
            "    for row in range(tl.program_id(0).to(tl.int64), rows, 4):\n"
            "        _one(row, column, inside, dy, x, w, rstds, dx, dw, columns)\n\n\n@triton.jit\n"
            "def _one(row, column, inside, dy, x, w, rstds, dx, dw, columns):\n    rstd"
        ),
        "rstds, dx, dw, columns,": "rstds, dx, dw, columns, rows,",
        "_backward[(len(rstds),)](dy, x, w, rstds, dx, total, columns,": (
            "_backward[(4,)](dy, x, w, rstds, dx, total, columns, len(rstds),"
        ),
    }
    found = judged(planted(stepping, SUMS), dtype="float32")
    (left_out,) = [o for o in found if o.verdict is Verdict.SKIPPED]
    assert "not finished after 2000 steps" in left_out.message
    assert verdicts_of(found) == {("output", Verdict.PASS), ("", Verdict.SKIPPED)}


RMS_NORM = KERNELS / "rms_norm_triton.py"
CHUNK = "for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):"
LONG_ROWS = 32769
"""Columns from which on the kernel takes a row of float16 in tiles."""


def in_blocks_of_several_rows(subject, columns):
    recipe = Recipe(
        rows=LOOKED_AT, columns=columns, weight=Values(seed=1), input=Values(), grad_output=Values(seed=2)
    )
    case = build(op("rms_norm"), subject, "float16", recipe, gradients=True)
    with machine(poison=0xFF):
        return examination(subject, "huge_extents", "float16", "machine").judge(case)[0]


def test_all_loops_of_a_kernel_with_a_bounded_grid_turn_more_than_once():
    subject = subject_of(RMS_NORM)
    with machine_runner() as runner:
        runner.renew()  # another test may have seen the same kernel run
        examining = Examination(
            subject=subject,
            check_name="huge_extents",
            dtype="float16",
            runner=runner,
            budget=Budget(cases=BUDGETS["quick"]),
        )
        line = examining.run()
    assert not line.findings
    (reach,) = reach_of_lines([line], [(str(subject.path), subject.name)])
    assert reach.functions == (8, 8)
    assert reach.loops == (7, 7)


@pytest.mark.parametrize(
    ("sum_of", "columns", "extent"),
    [("d * (value * tl.load(rstds + row))", LONG_ROWS, 131), ("d * hat", COLUMNS, 4099)],
    ids=["rows in tiles", "rows in one tile"],
)
def test_a_block_that_keeps_the_last_of_its_rows_alone_is_found(sum_of, columns, extent):
    found = in_blocks_of_several_rows(
        planted({f"part_dw += {sum_of}": f"part_dw = {sum_of}"}, RMS_NORM), columns
    )
    (failed,) = [o for o in found if o.verdict is not Verdict.PASS and o.verdict is not Verdict.SKIPPED]
    assert (failed.verdict, failed.output) == (Verdict.FAIL, "grad_weight")
    assert failed.message.endswith(f"in chosen rows of a tensor of {extent} x {columns}")


def test_rows_of_a_block_that_lie_apart_are_no_finding():
    # As many blocks as if each had neighbouring rows: blocks that were chosen so have other rows.
    strided = "for row in range(program, rows, tl.num_programs(0).to(tl.int64)):"
    head = f"    part_dw = tl.zeros((BLOCK,), ACCUMULATE)\n    {CHUNK}\n"
    change = {f"{head}        rstd": f"{head.replace(CHUNK, strided)}        rstd"}
    found = in_blocks_of_several_rows(planted(change, RMS_NORM), COLUMNS)
    assert {o.verdict for o in found} == {Verdict.PASS, Verdict.SKIPPED}


def test_rows_that_blocks_of_others_may_write_to_are_no_pass_in_a_tall_tensor():
    stored = "tl.store(dx + row * columns + column, (g - hat * c1) * rstd, mask=inside)\n        part_dw"
    early = "tl.store(dx + (row - 8) * columns + column, (g - hat * c1) * rstd, mask=inside & (row > 7))"
    change = {stored: stored.replace("\n", f"\n        {early}\n")}
    right, wrong = (in_blocks_of_several_rows(planted(one, RMS_NORM), COLUMNS) for one in ({}, change))
    in_gradients = {"grad_input", "grad_weight"}
    assert {o.output for o in right if o.verdict is Verdict.PASS} >= in_gradients
    assert not {o.output for o in wrong if o.verdict is Verdict.PASS} & in_gradients


TICKETS = {
    LAUNCHED: "row = tl.atomic_add(tickets, 1).to(tl.int64)",
    "columns, eps, BLOCK: tl": "columns, eps, tickets, BLOCK: tl",
    "float(eps), BLOCK": "float(eps), torch.zeros(1, dtype=torch.int32, device=x.device), BLOCK",
}
LAST_BLOCK = {
    LAUNCHED: "row = tl.program_id(0).to(tl.int64)\n    before = tl.atomic_add(tickets, 1)",
    "out = centred * rstd\n": "out = centred * rstd + tl.where(before > 50, 1.0, 0.0)\n",
} | {old: new for old, new in TICKETS.items() if old != LAUNCHED}


@pytest.mark.parametrize("changes", [TICKETS, LAST_BLOCK], ids=["tickets", "order of blocks"])
def test_blocks_that_depend_on_each_other_are_not_judged(changes):
    (outcome,) = judged(planted(changes, SOURCE))
    assert outcome.verdict is Verdict.SKIPPED
    assert "blocks depend on each other (output: bits differ" in outcome.message


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("x = input.detach().float()", "memory for torch's aten._to_copy on a tensor of gigabytes"),
        ("x = input.detach() * 1", "memory for torch's aten.mul on a tensor of gigabytes"),
    ],
)
def test_a_wrapper_that_computes_on_the_whole_tensor_is_not_judged(change, why):
    (outcome,) = judged(planted({"x = input.detach().contiguous()": change}, SOURCE))
    assert outcome.verdict is Verdict.SKIPPED
    assert why in outcome.message


def test_a_refusal_of_so_many_rows_is_no_finding():
    refusing = "x = input.detach().contiguous()\n    if x.numel() > 2**31: raise ValueError('too many')"
    (outcome,) = judged(planted({"x = input.detach().contiguous()": refusing}, SOURCE))
    assert outcome.verdict is Verdict.SKIPPED
    assert "too many" in outcome.message


def test_what_has_no_such_rows_is_skipped():
    skips = check("huge_extents").skips
    batch_norm = subject_of(KERNELS / "batch_norm_triton.py")
    assert skips(batch_norm, op("batch_norm"), "float16", "machine") is None
    batch_norm = batch_norm.differing(domain=Domain(max_rank=2))
    assert "no axis goes by rows" in skips(batch_norm, op("batch_norm"), "float16", "machine")
    layer_norm = subject_of(SOURCE)
    assert skips(layer_norm, op("layer_norm"), "float16", "machine") is None
    assert "chosen blocks" in skips(layer_norm, op("layer_norm"), "float16", "eager")
    assert backend("machine").followed() == ()


@pytest.mark.parametrize("columns", [1, 3, 1000, 1024, 65537])
def test_rows_lie_on_both_sides_of_2_30_and_2_31_elements(columns):
    huge, few = ChosenExtents.huge(columns), ChosenExtents.few(columns)
    _, below, first, before, second, last = huge.rows
    assert (below + 1, before + 1, last + 1) == (first, second, huge.extent)
    assert below * columns < 2**30 <= first * columns
    assert before * columns < 2**31 <= second * columns
    assert len(set(few.rows)) == len(few.rows) == len(huge.rows)
    assert max(few.rows) + 1 == few.extent < huge.extent


@pytest.mark.parametrize("places", [6, 7, 9])
def test_more_places_than_six_are_looked_at_where_samples_have_several_rows(places):
    for extents in (ChosenExtents.huge(1001, places), ChosenExtents.few(1001, places)):
        assert len(set(extents.rows)) == places
        assert list(extents.rows) == sorted(extents.rows)
        assert {*ChosenExtents.huge(1001).rows} <= {*extents.rows} or extents.extent < 1000


def test_channels_of_a_batch_norm_are_rows_and_a_sample_of_them_has_more_than_2_31_elements():
    source = KERNELS / "batch_norm_triton.py"
    right = judged(subject_of(source))
    assert {o.verdict for o in right} == {Verdict.PASS}
    assert {o.output for o in right} >= {"output", "running_mean", "grad_input", "grad_weight"}
    for place in ("y_sample", "dx_sample"):  # in the forward pass, and in the backward pass alone
        cast = {f"{place} = tl.cast(channels, tl.int64) * space": f"{place} = channels * space"}
        (found,) = judged(planted(cast, source))
        assert found.machine_finding == "out_of_bounds"


@pytest.fixture
def few_steps(monkeypatch):
    """Give up early on backward passes that go through all rows, which are not judged in any case."""
    monkeypatch.setattr(launch, "MOST_STEPS", 200)


@pytest.mark.usefixtures("few_steps")
def test_samples_of_an_instance_norm_have_a_row_for_each_channel():
    outcomes = judged(subject_of(KERNELS / "instance_norm_triton.py"))
    assert ("output", Verdict.PASS) in {(o.output, o.verdict) for o in outcomes}
    (not_judged,) = [o for o in outcomes if o.verdict is Verdict.SKIPPED]
    assert not_judged.message.startswith("gradients of huge tensors are not judged")


CHANNELS = FAULTY / "samples_in_32_bits_triton.py"


def test_samples_of_channels_are_rows_where_each_is_one_group():
    huge = ChosenExtents.huge(COLUMNS_IN_CHANNELS)
    (found,) = judged(subject_of(CHANNELS))
    assert found.machine_finding == "out_of_bounds"
    assert f"block ({huge.rows[-2]}, 0, 0)" in found.message
    assert found.message.endswith(f"in chosen rows of a tensor of {huge.extent} x {COLUMNS_IN_CHANNELS}")
    right = planted({LAUNCHED: f"{LAUNCHED}.to(tl.int64)"}, CHANNELS)
    assert verdicts_of(judged(right)) == {("output", Verdict.PASS)}


@pytest.mark.usefixtures("few_steps")
def test_the_corrected_group_norm_passes_and_is_found_without_its_cast():
    source = KERNELS / "group_norm_triton.py"
    passed = [o for o in judged(subject_of(source)) if o.verdict is not Verdict.SKIPPED]
    assert ("output", Verdict.PASS) in verdicts_of(passed)
    assert not failures(passed)
    cast = "row = tl.program_id(0).to(tl.int64)\n    sample, group = row // groups, row % groups\n"
    strided = "return sample * sample_step"
    narrow = "return sample.to(tl.int32) * sample_step.to(tl.int32)"
    head = f"{cast}    columns = channels * space\n    count = tl.cast(columns, ACCUMULATE)\n    if means"
    narrow_row = head.replace(".to(tl.int64)", "")
    for change in ({strided: narrow}, {head: narrow_row}):
        assert failures(judged(planted(change, source)))


def test_parameters_of_as_many_elements_as_there_are_rows_have_no_rows():
    right = planted({LAUNCHED: f"{LAUNCHED}.to(tl.int64)"}, SOURCE)
    recipe = Recipe(rows=LOOKED_AT, columns=LOOKED_AT, weight=Values(), bias=Values())
    case = build(op("layer_norm"), right, "float16", recipe, gradients=False)
    with machine(poison=0xFF):
        outcomes = examination(right, "huge_extents", "float16", "machine").judge(case)[0]
    assert verdicts_of(outcomes) == {("output", Verdict.PASS)}


LONG = FAULTY / "long_rows_in_32_bits_triton.py"
PRODUCT = "# The bug: row and columns are 32-bit numbers, and so is their product."
CAST = {f"{PRODUCT}\n    row = tl.program_id(0)": "row = tl.program_id(0).to(tl.int64)"}


def searched(subject):
    """Return what a search of huge_extents finds."""
    with machine_runner() as runner:
        budget = Budget(cases=BUDGETS["quick"], findings=1)
        return Examination(
            subject=subject, check_name="huge_extents", dtype="float16", runner=runner, budget=budget
        ).run()


def test_kernels_of_other_rows_have_huge_tensors_too(monkeypatch):
    (finding,) = searched(subject_of(LONG)).findings
    assert finding.outcome.machine_finding == "out_of_bounds"
    assert finding.case.columns == 3001
    launches = sweep(subject_of(LONG), "float16", "machine")  # known by now; a cast in a kernel changes none
    monkeypatch.setattr(audits, "sweep", lambda *_: launches)
    assert not searched(planted(CAST, LONG)).findings


def test_a_domain_of_fewer_rows_leaves_short_rows_out_alone():
    right = planted(CAST, LONG)
    most = ChosenExtents.huge(COLUMNS).extent
    few = right.differing(domain=Domain(max_abs=1e15, max_kappa=1e3, max_rows=most))
    assert check("huge_extents").skips(few, op("layer_norm"), "float32", "machine") is None
    with machine(poison=0xFF):
        examining = examination(few, "huge_extents", "float32", "machine")
        for columns, rows in ((COLUMNS // 2, 0), (COLUMNS, 1)):
            case = build(
                op("layer_norm"), few, "float32", Recipe(rows=LOOKED_AT, columns=columns), gradients=False
            )
            assert len(examining.judge(case)[0]) == rows
