"""What ran is told, and what never ran is named: kernels, loops that turn once, lines of the wrapper."""

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checks_support import planted
from rich.console import Console
from small_cases import case_of
from typer.testing import CliRunner

from verifier.audit import examination, rules
from verifier.audit.budget import LEAST_STEERED, STEERED_SECONDS, Budget
from verifier.audit.examination import Examination
from verifier.audit.reach_of_subjects import SubjectReach, WhyNot, reach_of_lines
from verifier.audit.report.json_document import document
from verifier.audit.report.reach_text import reach_document, reach_lines, what_ran
from verifier.audit.report.terminal import show, summary
from verifier.audit.request import BUDGETS, SelectionError, parse_requirements
from verifier.audit.run_audit import Report
from verifier.commands.command_line import app
from verifier.execution import Runner
from verifier.records.reach import NOTHING, Reach, SourcePlace, WithoutRoom, joined
from verifier.records.verdict import Line, Verdict
from verifier.subjects.load_file import load_subjects
from verifier.subjects.source_map import source_map

FOLDER = Path(__file__).with_name("reach_kernels")
LANGUAGES = {"triton": "two_kernels_triton", "cuda": "two_kernels_cuda"}


@pytest.fixture(scope="module")
def runner():
    with Runner("machine") as opened:
        yield opened


@pytest.fixture(scope="module", params=sorted(LANGUAGES))
def subject(request):
    (found,) = load_subjects(FOLDER / f"{LANGUAGES[request.param]}.py")
    return found


def run(runner, subject, rows, columns, **options):
    tensor = torch.linspace(-1, 1, rows * columns).reshape(rows, columns)
    case = case_of(
        tensor,
        op="rms_norm",
        tensors={"input": tensor},
        scalars={"eps": 1e-5, "normalized_shape": (columns,)},
        layouts={},
        rows=rows,
        columns=columns,
    )
    seen = runner.run(subject, case, **options)
    assert seen.status == "ok", seen
    return seen.reach


def told(subject, *reaches):
    return SubjectReach(
        subject=subject.name, path=str(subject.path), sources=source_map(subject), found=joined(reaches)
    )


def turns(reach):
    found = {}
    for place, turned in reach.loops:
        found.setdefault((place.function, place.line), set()).add(turned)
    return found


def line_of(subject, reach, **changes):
    made = Line(subject=subject.name, check="forward_error", dtype="float32", backend="machine", variance="")
    made.path = str(subject.path)
    made.counts[Verdict.PASS] = 1
    return replace(made, reach=reach, **changes)


def text_of(report):
    said = io.StringIO()
    show(report, Console(file=said, width=200))
    return said.getvalue()


def report_of(subject, reach, **changes):
    line = line_of(subject, reach)
    return Report(lines=[line], reach=reach_of_lines([line], [(str(subject.path), subject.name)]), **changes)


def test_a_kernel_that_no_shape_launches_is_named_and_fails_what_requires_all(subject):
    with Runner("machine") as own:
        found = told(subject, run(own, subject, 2, 70), run(own, subject, 3, 1))
    (lacking,) = [one for one in found.lacking() if one.kind == "function"]
    assert lacking.place.function == "endless_row"
    assert lacking.why == "launched by no case that was tried"
    assert found.functions == (2, 3)
    assert found.loops == (2, 3)
    report = report_of(subject, found.found)
    assert "not run  endless_row" in text_of(report)
    assert f" compiled form{'s' * (len(found.code.forms) != 1)}\n" in text_of(report)
    assert found.code.forms
    assert summary(report).splitlines()[-1] == (
        f"PASS of what ran: {subject.name} 2 of 3 functions, 2 of 3 loops more than once"
    )
    assert report.status == 0
    assert replace(report, required_reach=0.6).status == 0
    assert replace(report, required_reach=1.0).status == 1
    assert "short of the required reach" in summary(replace(report, required_reach=1.0))
    assert "reach=1 is required; 0.667 of its functions" in text_of(replace(report, required_reach=1.0))
    (told_of,) = document(replace(report, required_reach=1.0))["unmet"]
    assert told_of["subject"] == subject.name
    assert told_of["text"].startswith(f"{subject.name}: reach=1 is required; 0.667 of its functions")
    assert document(report)["unmet"] == []


def test_a_loop_that_only_ever_turns_once_is_reported_as_such(subject):
    with Runner("machine") as own:
        found = told(subject, run(own, subject, 2, 1))
    once = [one for one in found.lacking() if one.kind == "loop" and one.place.function == "short_row"]
    assert {one.why for one in once} == {"not seen to turn more than once"}
    assert len(once) == 2
    assert found.loops == (0, 3)


def test_a_mask_that_never_left_a_lane_out_is_named_until_it_does():
    (subject,) = load_subjects(FOLDER / "two_kernels_triton.py")
    with Runner("machine") as own:
        whole = run(own, subject, 2, 64)
        partly = run(own, subject, 2, 40)
    lines = list(reach_lines(told(subject, whole)))
    (guards,) = [line for line in lines if line.strip().startswith("guards")]
    # Not the store's: the compiler joins its mask with the lanes that hold a copy of another's element.
    source = Path(subject.path).read_text(encoding="utf-8").splitlines()
    masks = [n for n, line in enumerate(source, 1) if "tl.load" in line and "mask=" in line]
    assert guards.endswith(f"always on: near two_kernels_triton.py {', '.join(map(str, masks))}")
    assert "guards" not in "".join(reach_lines(told(subject, whole, partly)))
    document = reach_document(told(subject, whole, partly))
    assert [one["lanes"] for one in document["guards"][: len(masks)]] == [["all", "some"]] * len(masks)
    assert document["blocks"]["of"] == sum(form["of"] for form in document["forms"]) > 4


def test_turns_are_those_of_the_source(runner):
    (subject,) = load_subjects(FOLDER / "two_kernels_triton.py")
    two = turns(run(runner, subject, 2, 64))
    assert {frozenset(seen) for seen in two.values()} == {frozenset({2})}
    many = turns(run(runner, subject, 2, 65))
    assert {frozenset(seen) for seen in many.values()} == {frozenset({3})}


def test_lanes_of_one_launch_that_turn_differently_are_told_apart(runner):
    """32 threads go through 40 columns in steps of 32: 8 of them turn twice."""
    (subject,) = load_subjects(FOLDER / "two_kernels_cuda.py")
    strided = max(turns(run(runner, subject, 2, 40)).items())
    assert strided[0][0] == "short_row"
    assert {1, 2} <= strided[1]


def test_an_answer_says_only_what_none_before_it_said(subject):
    with Runner("machine") as own:
        first = run(own, subject, 2, 40)
        assert first.functions
        assert first.lines
        again = run(own, subject, 2, 40)
        assert again == NOTHING
        assert turns(run(own, subject, 2, 1))


def test_what_a_dead_child_recorded_is_lost_and_nothing_else(subject, monkeypatch):
    with Runner("machine") as own:
        before = run(own, subject, 2, 40)
        (child,) = own._children.values()
        os.kill(child.pid, signal.SIGKILL)
        dead = own.run(subject, case_of(torch.ones(2, 4), op="rms_norm", tensors={"input": torch.ones(2, 4)}))
        assert dead.reach == NOTHING
        after = run(own, subject, 2, 40)
    assert after.functions == before.functions
    assert after.lines == before.lines


def test_statements_of_the_wrapper_are_followed_and_refusals_stand_apart(runner):
    (subject,) = load_subjects(FOLDER / "two_kernels_triton.py")
    with Runner("machine") as own:
        found = told(subject, run(own, subject, 2, 40))
    missing = {one.place.line: one.why for one in found.lacking() if one.kind == "line"}
    lines = (FOLDER / "two_kernels_triton.py").read_text().splitlines()
    assert {lines[number - 1].split("(")[0].strip(): why for number, why in missing.items()} == {
        "raise ValueError": "refuses",
        "return y": "not run",
        "endless_row[": "not run",
    }
    assert found.refusals == (0, 1)
    assert found.lines[1] - found.lines[0] == 2


def test_what_only_the_declaration_uses_and_what_nobody_uses_is_not_counted():
    (subject,) = load_subjects(FOLDER / "two_kernels_triton.py")
    sources = source_map(subject)
    assert {f.place.function for f in sources.functions} == {"scaled", "short_row", "endless_row"}
    assert {s.place.function for s in sources.statements} == {"two_kernels"}


def test_where_no_code_is_followed_nothing_is_said_to_be_0():
    (subject,) = load_subjects(FOLDER / "two_kernels_triton.py")
    found = told(subject, Reach(recorded=frozenset({"lines"})))
    (head, *_) = reach_lines(found)
    assert "functions and loops not recorded here" in head
    assert "0/3" not in head
    assert found.whole
    assert not any(one.kind in {"function", "loop"} for one in found.lacking())
    written = document(report_of(subject, found.found))["reach"][0]
    assert written["functions"] is None
    assert written["loops"] is None
    assert not rules.reach_suffices(found.sources, found.found, 0.1)


def test_a_launched_kernel_that_stands_in_no_source_that_was_read_leaves_all_unknown():
    found = told(
        load_subjects(FOLDER / "two_kernels_triton.py")[0],
        Reach(unfollowed=frozenset({"other"}), recorded=frozenset({"code"})),
    )
    (head, *_) = reach_lines(found)
    assert "functions and loops unknown" in head
    assert "other stands in none of them" in head
    assert reach_document(found)["functions"] is None
    assert not rules.reach_suffices(found.sources, found.found, 0.0)


def test_numbers_of_multiprocessors_are_named_that_were_not_tried_where_they_are_read():
    (subject,) = load_subjects(FOLDER.parents[1] / "faulty_kernels" / "rows_lost_by_one_processor_triton.py")
    with Runner("machine") as own:
        seen = run(own, subject, 1, 4)
        assert not run(own, subject, 1, 4).given
    found = told(subject, seen)
    assert found.multiprocessors == (1, 2, 108, 148)
    assert any("not tried with 1, 2, 108, 148" in text for text in reach_lines(found))
    played = told(subject, seen, Reach(given=frozenset({("multiprocessors", "1")})))
    untried = document(report_of(subject, played.found))["reach"][0]["untried"]
    assert untried["multiprocessors"] == [2, 108, 148]
    assert "under torch.no_grad" in untried["modes"]
    assert told(subject, Reach(recorded=frozenset({"code"}))).multiprocessors == ()


def test_modes_are_untried_until_a_line_of_modes_has_them():
    (subject,) = load_subjects(FOLDER / "two_kernels_triton.py")
    line = line_of(
        subject, Reach(recorded=frozenset({"lines"})), check="modes", untried=["under torch.no_grad"]
    )
    (found,) = reach_of_lines([line], [(str(subject.path), subject.name)])
    assert found.modes == ("under torch.no_grad",)


def test_torch_operators_are_not_recorded_and_require_nothing(tmp_path):
    path = Path(__file__).parents[1] / "support" / "right_kernel.py"
    (subject,) = load_subjects(path)
    with Runner("eager") as own:
        seen = own.run(subject, case_of(torch.ones(2, 4), scalars={"eps": 1e-5, "normalized_shape": (4,)}))
    assert seen.status == "ok"
    found = told(subject, seen.reach)
    (head, *_) = reach_lines(found)
    assert "functions and loops not recorded here" in head
    assert "wrapper lines" in head
    assert found.lines[0] > 0
    assert rules.reach_suffices(found.sources, found.found, 1.0)
    assert what_ran([found]) == ""


@pytest.mark.parametrize("text", ["reach", "reach=", "reach=2", "reach=-1", "beauty=1", "reach=nan"])
def test_what_cannot_be_required_is_said(text):
    with pytest.raises(SelectionError, match="what can be required is reach=FRACTION"):
        parse_requirements([text])


def test_the_command_demands_what_is_required_and_writes_what_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "audit",
        str(FOLDER / "two_kernels_triton.py"),
        "--check",
        "forward_error",
        "--backend",
        "machine",
    ]
    monkeypatch.setitem(BUDGETS, "quick", 3)
    ended = CliRunner().invoke(app, [*words, "--workers", "1", "--require", "reach=1", "--json", "r.json"])
    assert "PASS of what ran: two_kernels" in ended.output
    assert "not run  endless_row (two_kernels_triton.py:" in ended.output
    assert ended.exit_code == 1
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["status"] == 1
    assert written["reach"][0]["functions"] == {"ran": 2, "of": 3}
    assert {one["function"] for one in written["reach"][0]["lacking"]} >= {"endless_row"}
    assert written["reach"][0]["given"]["multiprocessors"] == ["132"]


def test_what_no_shape_that_was_tried_dry_launches_or_turns_twice_is_told_from_what_had_no_case():
    (found,) = load_subjects(FOLDER / "two_kernels_triton.py")
    sources = source_map(found)
    loop = sources.loops[0].place
    once = Reach(recorded=frozenset({"code"}), loops=frozenset({(loop, 1)}))

    def why(place, **planned):
        (part,) = (p for p in told(found, once, Reach(**planned)).lacking() if p.place == place)
        return part.why

    where = (loop.file, loop.line)
    assert why(loop) == "not seen to turn more than once"
    assert why(loop, turnable=frozenset({(*where, False)})).startswith("its head lets it turn at most once")
    both = frozenset({(*where, False), (*where, True)})
    assert why(loop, turnable=both).endswith(", though its head lets it turn again at some shapes")
    entry = next(f.place for f in sources.functions if f.entry)
    own = f"two_kernels_triton.{entry.function}"
    assert why(entry, launchable=frozenset({"two_kernels_triton.other"})).startswith("launched at no shape")
    for planned in (frozenset(), frozenset({own})):
        assert why(entry, launchable=planned) == "launched by no case that was tried"


def test_a_shape_without_room_is_the_reason_where_it_reaches_what_did_not_run():
    (found,) = load_subjects(FOLDER / "two_kernels_triton.py")
    sources = source_map(found)
    loop, entry = sources.loops[0].place, next(f.place for f in sources.functions if f.entry)
    once = Reach(recorded=frozenset({"code"}), loops=frozenset({(loop, 1)}))
    kernel = f"two_kernels_triton.{entry.function}"

    def lacking(place, *without_room):
        every = told(found, once, Reach(without_room=frozenset(without_room))).lacking()
        (part,) = (one for one in every if one.place == place)
        return part

    dear, dearer = WithoutRoom(kernel, 0, 3, 9, 5.2), WithoutRoom(kernel, 0, 4, 9, 20.5)
    least = lacking(entry, dear, dearer)
    assert least.why == "beyond the budget: 3 x 9 launches it, about 6 s"
    assert (least.cause, least.shape, least.seconds) == (WhyNot.BUDGET, "3 x 9", 5.2)
    assert lacking(entry, dearer).why == "beyond every budget: 4 x 9 launches it, about 21 s"
    turning = WithoutRoom(loop.file, loop.line, 7, 9, 2.0)
    assert lacking(loop, turning).why == "beyond the budget: 7 x 9 may turn it again, about 2 s"
    assert lacking(loop, dear).cause == WhyNot.NO_SECOND_TURN
    assert lacking(entry, turning).cause == WhyNot.NO_CASE


CONDITION = "columns >= 2**24"
LINE = "    if not x.numel():\n"
NOT_RUN = {
    "the budget has no room": (
        {CONDITION: "columns >= 2**14"},
        "beyond the budget: 1 x 16384 launches it, about 1 s",
        {"cause": "budget", "shape": "1 x 16384"},
    ),
    "another dtype was not audited": (
        {
            'dtypes=("float32",)': 'dtypes=("float32", "float64")',
            "(torch.float32,)": "(torch.float32, torch.float64)",
            CONDITION: "input.dtype == torch.float64",
        },
        "only in float64, which was not audited",
        {"cause": "dtype", "dtypes": ["float64"]},
    ),
    "the wrapper refuses": (
        {LINE: f'    if columns > 8192:\n        raise ValueError("rows are too long")\n{LINE}'},
        "the wrapper refuses 1 x 8193 (ValueError: rows are too long), and it is launched at no shape that",
        {"cause": "refused"},
    ),
}


@pytest.mark.parametrize("what", NOT_RUN)
def test_a_kernel_that_no_case_launched_says_for_which_reason(what, monkeypatch):
    changes, words, facts = NOT_RUN[what]
    monkeypatch.setattr(examination, "NEWS_BESIDES", 0.0)
    monkeypatch.setattr(examination, "VARIED_AT_LEAST", {True: (0, 0.0), False: (0, 0.0)})
    monkeypatch.setitem(STEERED_SECONDS, "quick", 0.01)
    one = planted(changes, FOLDER / "two_kernels_triton.py")
    with Runner("machine") as own:
        line = Examination(
            subject=one,
            check_name="forward_error",
            dtype="float32",
            runner=own,
            budget=Budget(cases=LEAST_STEERED),
        ).run()
    assert not line.findings
    (found,) = reach_of_lines([line], [(str(one.path), one.name)], asks=True)
    assert f"  not run  endless_row (two_kernels_triton.py:37): {words}" in "\n".join(reach_lines(found))
    lacking = reach_document(found)["lacking"]
    (said,) = (part for part in lacking if part["kind"] == "function")
    assert said["why"].startswith(words)
    assert said | facts == said


def test_a_loop_that_the_compiler_left_out_of_a_function_that_ran_is_told_from_one_that_no_launch_compiled():
    (found,) = load_subjects(FOLDER / "two_kernels_triton.py")
    loop = source_map(found).loops[0].place
    function = next(f.place for f in source_map(found).functions if f.place.function == loop.function)

    def why(*functions):
        seen = Reach(recorded=frozenset({"code"}), functions=frozenset(functions))
        return next(p.why for p in told(found, seen).lacking() if p.place == loop)

    assert why() == "in no kernel that was launched"
    assert why(function).startswith("its function ran without it: the compiler leaves out")


def test_shapes_without_room_are_named_with_their_highest_price_and_so_is_a_sweep_that_failed():
    (found,) = load_subjects(FOLDER / "two_kernels_triton.py")
    priced = [Reach(left_out=frozenset({("(1 x 9)", price)})) for price in (20.5, 17.0)]
    told_of = told(found, *priced, Reach(unswept=frozenset({"it reads numbers"})))
    text = "\n".join(reach_lines(told_of))
    assert "shapes   left out: (1 x 9): about 21 s\n" in text
    assert "not chosen by what they launch: it reads numbers" in text
    said = reach_document(told_of)
    assert said["left_out"] == [{"shape": "(1 x 9)", "seconds": 20.5}]
    assert said["unswept"] == ["it reads numbers"]


def test_configurations_of_autotuned_kernels_are_counted_and_those_that_did_not_run_are_named():
    (subject,) = load_subjects(FOLDER / "two_kernels_triton.py")
    kernel = SourcePlace("two_kernels_triton.py", "short_row", 1)
    fates = {("BLOCK=1", "not tried"), ("BLOCK=1", "ran"), ("BLOCK=2", "does not fit the device")}

    def seen(*more):
        found = {(kernel, *fate) for fate in {*fates, *more}}
        return told(subject, Reach(configurations=frozenset(found), recorded=frozenset({"lines"})))

    fitting, open_ = seen(), seen(("BLOCK=4", "not tried"))
    assert what_ran([fitting]) == ""
    assert what_ran([open_]) == f"PASS of what ran: {subject.name} 1 of 3 configurations of short_row"
    lines = list(reach_lines(open_))
    assert "1 of 3 configurations of short_row" in lines[0]
    assert f"  tuned    {kernel}: BLOCK=2: does not fit the device; BLOCK=4: not tried" in lines
    assert reach_document(open_)["configurations"] == [
        {
            **kernel._asdict(),
            "ran": 1,
            "of": 3,
            "tried": ["BLOCK=1"],
            "untried": [
                {"configuration": "BLOCK=2", "why": "does not fit the device"},
                {"configuration": "BLOCK=4", "why": "not tried"},
            ],
        }
    ]
