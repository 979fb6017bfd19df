"""A barrier taken out of our kernels is missed by the race sanitizers, or proved superfluous: a sample.

removed_barriers.py tries all of them.
"""

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="most of these kernels are Triton; it is not installed")

import removed_barriers as removed

from verifier.execution.backends import backend
from verifier.subjects.load_file import builtin_files, load_subjects

SUBJECTS = [
    subject
    for file in builtin_files()
    if not file.stem.endswith("_torch")
    for subject in load_subjects(file)
    if not removed.declared_to_race(subject)
]
SHAPES = ((2, 1100),)  # several warps in every kernel, and several tiles in most
# More rows than a backward has programs, of tiles and of chunks, in the same code, and no lane left off.
MANY_ROWS = ((33, 2047), (513, 2047))
EACH = 5  # of so many barriers one is tried, another one in each kernel


@pytest.mark.parametrize("number", range(len(SUBJECTS)), ids=lambda n: SUBJECTS[n].name)
def test_a_barrier_taken_out_is_missed_or_superfluous(number):
    subject = SUBJECTS[number]
    refusal = backend("machine").refuses(subject, removed.DTYPE)
    if refusal:
        pytest.skip(refusal)
    every = list(removed.barriers(removed.codes(subject, SHAPES)))
    sample = every[number % EACH % max(len(every), 1) :: EACH]
    unseen = [(code, line) for code, line in sample if removed.verdict(code, line) == removed.UNSEEN]
    for shape in MANY_ROWS:  # barriers between two rows of a program are needed where a program has two
        looping = {code.ptx: code for code in removed.codes(subject, (shape,))} if unseen else {}
        again = [(looping.get(code.ptx, code), line) for code, line in unseen]
        unseen = [(code, line) for code, line in again if removed.verdict(code, line) == removed.UNSEEN]
    assert [line for _, line in unseen] == []


def test_no_barrier_between_writing_and_reading_is_superfluous():
    (subject,) = (s for s in SUBJECTS if s.name == "softmax_triton")
    code = max(removed.codes(subject, SHAPES), key=lambda c: len(c.barriers()))
    first, second = code.barriers()[:2]
    assert removed.finding(code.ptx, code.shots) is None
    assert removed.finding(removed.without(code.ptx, first), code.shots) == "shared_race"
    assert not removed.superfluous(code, first)
    # With a twin beside it, each of the two alone is.
    lines = code.ptx.split("\n")
    lines.insert(first, lines[first - 1])
    doubled = replace(
        code,
        ptx="\n".join(lines),
        tensors=shifted(code.tensors, first),
        shared=shifted(code.shared, first),
    )
    assert removed.superfluous(doubled, first)
    assert removed.superfluous(doubled, first + 1)
    assert not removed.superfluous(doubled, second + 1)


def shifted(by_line, line):
    """What was seen of a code's lines after a line was put in."""
    return {n + (n > line): seen for n, seen in by_line.items()}
