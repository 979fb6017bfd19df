"""The tutorial's race, found in the code that an older Triton makes of it, whichever Triton is installed.

record_older_ptx.py has stored that code. What it lacks are two barriers inside the lock: put in, they leave
nothing to find, so that neither finding is a false alarm.
"""

import pytest

pytest.importorskip("triton", reason="the tutorial's kernels are Triton; it is not installed")

from checks_support import KERNELS, examination, machine, subject_of
from record_older_ptx import COLUMNS, KERNEL, STORED

from verifier.cases.recipe import Recipe, build
from verifier.machine.device.triton_driver import Launcher
from verifier.ops import op
from verifier.records import subject as subjects
from verifier.records import witness
from verifier.records.verdict import Verdict

PAGES = ("newer", "older")
TUTORIALS = [subject_of(KERNELS / f"layer_norm_published_tutorial_{page}_triton.py") for page in PAGES]
BARRIER = "\tbar.sync \t0;"
MORE_ROWS_THAN_BUFFERS = 257


@pytest.fixture
def compiled_as(monkeypatch):
    """Give the machine other code for the backward pass over rows than the installed Triton makes."""
    own = Launcher.ptx.func

    def install(text):
        monkeypatch.setattr(
            Launcher, "ptx", property(lambda self: text if self.metadata.name == KERNEL else own(self))
        )

    return install


def found(subject, rows):
    """What synchronization says of one case of the stored code's columns."""
    case = build(op(subject.op), subject, "float16", Recipe(rows=rows, columns=COLUMNS), gradients=True)
    with machine() as place:
        outcomes, _ = examination(subject, "synchronization", "float16", place).judge(case)
    return outcomes


def with_barriers(text, *, before_written_is_set, before_the_lock_opens):
    """Put barriers before the exchanges: the first sets the count word, the last opens the lock."""
    lines = text.split("\n")
    exchanges = [n for n, line in enumerate(lines) if ".exch." in line]
    assert len(exchanges) == 2
    loads = [n for n, line in enumerate(lines[: exchanges[0]]) if "atom.global" in line or "bar.sync" in line]
    of_written = next(n for n in range(loads[-1], exchanges[0]) if "ld.global" in lines[n])
    for place, wanted in ((exchanges[1] - 1, before_the_lock_opens), (of_written, before_written_is_set)):
        if wanted:
            lines.insert(place + 1, BARRIER)
    return "\n".join(lines)


@pytest.mark.parametrize("subject", TUTORIALS, ids=lambda s: s.name)
def test_one_row_shows_that_the_count_word_is_read_while_it_is_set(subject, compiled_as):
    compiled_as(STORED.read_text())
    (outcome,) = found(subject, rows=1)
    assert (outcome.verdict, outcome.output) == (Verdict.FAIL, "global_race")
    assert "read by block 0 warp 1" in outcome.message
    assert "exch" in outcome.message
    assert "tensor locks" in outcome.message


@pytest.mark.parametrize("subject", TUTORIALS, ids=lambda s: s.name)
def test_rows_that_share_a_buffer_show_that_the_lock_opens_before_the_stores_are_done(subject, compiled_as):
    first = with_barriers(STORED.read_text(), before_written_is_set=True, before_the_lock_opens=False)
    compiled_as(first)
    assert [o.verdict for o in found(subject, rows=1)] == [Verdict.PASS]
    (outcome,) = found(subject, rows=MORE_ROWS_THAN_BUFFERS)
    assert (outcome.verdict, outcome.output) == (Verdict.FAIL, "global_race")
    assert "tensor parts_d" in outcome.message
    assert "written by block 0 warp 1" in outcome.message


def test_both_barriers_leave_nothing_to_find(compiled_as):
    compiled_as(with_barriers(STORED.read_text(), before_written_is_set=True, before_the_lock_opens=True))
    for rows in (1, MORE_ROWS_THAN_BUFFERS):
        assert [o.verdict for o in found(TUTORIALS[0], rows)] == [Verdict.PASS]


@pytest.mark.parametrize("subject", TUTORIALS, ids=lambda s: s.name)
def test_the_defect_is_expected_of_older_compilers_alone(subject, monkeypatch):
    (defect,) = (d for d in subject.known_defects if d.check == "synchronization")
    for version, seen in (((3, 6), True), ((3, 8), True), ((3, 9), False), ((3, 10), False)):
        monkeypatch.setattr(subjects, "_triton_version", lambda version=version: version)
        assert defect.observable("machine", "float16") == seen
    assert all(witness.stored(subject, defect, dtype) is not None for dtype in subject.dtypes)
