"""The rules of an audit: what is a finding, what a case and a line come to, and the exit status.

Each rule is a function of records alone and stands here only: all else asks it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from verifier.bounds.why_none import NOT_FINITE, OVERFLOW
from verifier.ops import op
from verifier.records.printable import said
from verifier.records.subject import Domain
from verifier.records.verdict import BAD, FailureKey, Finding, Line, Outcome, Verdict

if TYPE_CHECKING:
    from verifier.checks.support.check import Check
    from verifier.records.case import Case
    from verifier.records.reach import Reach
    from verifier.records.subject import Subject
    from verifier.subjects.source_map import SourceFunction, SourceLoop, SourceMap

_WORST_FIRST = (
    Verdict.FAIL,
    Verdict.CRASH,
    Verdict.TIMEOUT,
    Verdict.REFUSED,
    Verdict.ERROR,
    Verdict.UNDECIDED,
    Verdict.PASS,
    Verdict.NO_THEOREM,
    Verdict.SKIPPED,
)
"""Of a case: what was looked at and stays open outweighs what passed, and a pass what has no theorem."""
_FINDINGS_WORST_FIRST = (
    Verdict.FAIL,
    Verdict.CRASH,
    Verdict.TIMEOUT,
    Verdict.REFUSED,
    Verdict.NO_THEOREM,
)
_OUT_OF_BOUNDS = "OutOfBounds"
"""First words of a failure that is an access out of bounds on the machine."""


# -- one outcome ---------------------------------------------------------------------------------------


def outside(subject: Subject, case: Case) -> bool:
    """Return whether a case lies outside the declared domain; without one all lie inside."""
    return (subject.domain or Domain()).excludes(case) is not None


def excused(outcome: Outcome) -> bool:
    """Return whether every reason why there is no theorem lies outside of what a domain can promise.

    A domain speaks of the input; weight, bias or gradient may still take a result out of range.
    """
    return bool(outcome.reasons) and {*outcome.reasons} <= {OVERFLOW, NOT_FINITE}


def promised(subject: Subject, case: Case, outcome: Outcome) -> Outcome:
    """Take the pass from a result that in part has no theorem, inside a domain that promises values."""
    domain = subject.domain
    if outcome.verdict is not Verdict.PASS or not outcome.uncovered or excused(outcome):
        return outcome
    if domain is None or not domain.numeric or domain.excludes(case) or not case.finite:
        return outcome
    return replace(outcome, verdict=Verdict.NO_THEOREM)


def is_finding(subject: Subject, check: Check, case: Case, outcome: Outcome) -> bool:
    """Return whether an outcome is a finding, given what the subject declares.

    A failure is one, but for wrong numbers beyond the promised ones; so is, inside the domain, a refusal,
    and a result without a theorem where numbers are promised and an algorithm is claimed.
    """
    beyond = outside(subject, case)
    if outcome.verdict in BAD:
        # What is kept spoils later calls inside the domain: to be refused, as elsewhere.
        unasked = beyond and check.ONLY_INSIDE and not outcome.kept
        unasked = unasked or (subject.domain or Domain()).leaves_dtypes_open(case)
        return not (unasked or beyond_promised_values(subject, check, case, outcome))
    if outcome.verdict is Verdict.REFUSED:
        return not beyond and not (subject.domain or Domain()).may_refuse(case)
    the_op = op(subject.op)
    # What has no exact value (a variance of one value over n - 1) has no theorem either.
    if outcome.verdict is not Verdict.NO_THEOREM or outcome.output in the_op.undefined(case):
        return False
    domain = subject.domain
    if domain is None or not domain.numeric or domain.leaves_eps_open(case):
        return False
    claimed = the_op.claimed(subject.claim) and not subject.claim.read
    return not beyond and claimed and not excused(outcome)


def beyond_promised_values(subject: Subject, check: Check, case: Case, outcome: Outcome) -> bool:
    """Return whether wrong numbers are due to numbers of which nothing is promised.

    A wrapper cannot refuse by values. Guarantees hold whatever the values are, and so do demands on
    anything but results: what memory holds, which device is named, that there is an answer at all.
    """
    domain = subject.domain
    if domain is None or domain.excludes_values(case) is None or outcome.verdict is not Verdict.FAIL:
        return False
    judges_numbers = outcome.worst is not None or check.JUDGES_NUMBERS
    return judges_numbers and check.NAME not in subject.guarantees


def as_counted(subject: Subject, check: Check, case: Case, outcome: Outcome) -> Outcome:
    """Count what is no finding outside the domain as not judged."""
    bad = outcome.verdict in {Verdict.REFUSED, *BAD}  # inside, each of these is a finding
    if bad and not is_finding(subject, check, case, outcome):
        return replace(outcome, verdict=Verdict.SKIPPED, worst=None)
    return outcome


def failure_key(outcome: Outcome) -> FailureKey:
    """Return what makes two failures alike: verdict, output, and the first words where no number is wrong."""
    words = "".join(c if c.isalpha() else " " for c in outcome.message.split(":")[0]).split()
    return FailureKey(
        verdict=str(outcome.verdict), output=outcome.output, words="" if outcome.worst else " ".join(words)
    )


def akin(wanted: FailureKey, outcome: Outcome) -> bool:
    """Return whether another backend may see the failure of this key as the outcome.

    It has the same output, or is of the same kind: wrong numbers, another demand broken, a crash, no answer.
    What an access out of bounds does beyond the machine is not defined: it may be garbage in any output.
    What the compiled code says of itself is the same everywhere; numbers that memory decides are not.
    """
    same_verdict = wanted.verdict == outcome.verdict
    about_numbers = (wanted.words == "") == (outcome.worst is not None)
    same_kind = wanted.verdict != Verdict.FAIL or about_numbers or outcome.output == "declaration"
    same_output = wanted.output != "" and wanted.output == outcome.output
    return (same_verdict and same_kind) or same_output or wanted.words == _OUT_OF_BOUNDS


def without_passes(outcomes: Iterable[Outcome], reasons: Iterable[str]) -> list[Outcome]:
    """Keep of the outcomes what speaks against the subject; for these reasons the rest is undecided."""
    against = [o for o in outcomes if o.verdict in {Verdict.REFUSED, Verdict.ERROR, *BAD}]
    return against + [Outcome(verdict=Verdict.UNDECIDED, message=text) for text in dict.fromkeys(reasons)]


def by_a_read_claim(subject: Subject, outcome: Outcome, explained: Outcome | None) -> Outcome:
    """Return what a failure means that rests on a claim which was read of another shape.

    explained: the failure that the roundings of the code that ran leave of the same result, where they do not
    explain it. Without one nothing is decided.
    """
    if explained is not None:
        return replace(outcome, meaning=explained.meaning, formula=explained.formula)
    claim = subject.claim
    text = (
        f"{outcome.output or 'a result'} is beyond the bounds of {claim.variance or claim.formula}, "
        f"{claim.read}; of this shape nothing is claimed: declare variance= or formula=, which "
        "`norm-verifier describe` proposes, or certify the shape"
    )
    return replace(outcome, verdict=Verdict.UNDECIDED, message=text, doubtful=True)


def beyond_a_proof(subject: Subject, outcome: Outcome) -> Outcome:
    """Return what a result means that is beyond bounds of what its code is proved to be at that very call.

    No other bound says so: proof or bound is wrong, or the run, and none is the kernel's.
    """
    claim = subject.claim
    text = (
        f"{outcome.output or 'a result'} is beyond the bounds of {claim.variance or claim.formula}, which "
        "the compiled code was proved to be at this very call: a bug of the verifier until explained"
    )
    return replace(outcome, verdict=Verdict.UNDECIDED, message=text, doubtful=True)


def own_failure(error: Exception, declared_in: Path) -> Outcome:
    """Return what an exception in the verifier's process means, where a subject runs only what it declares.

    declared_in: the subject's file, whose own functions (a tree, a domain, a specification) may have raised.
    """
    frames = traceback.extract_tb(error.__traceback__)
    text = said(error)
    theirs = next((f for f in reversed(frames) if Path(f.filename) == declared_in), None)
    if theirs is not None:
        message = f"a function of the declaration ({theirs.name}, line {theirs.lineno}) raised {text}"
        return Outcome(verdict=Verdict.FAIL, output="declaration", message=message)
    last = frames[-1]
    return Outcome(verdict=Verdict.ERROR, message=f"{text} (in {last.name}, {last.filename}:{last.lineno})")


# -- one case ------------------------------------------------------------------------------------------


def summed(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a case from those of its parts: the worst, and PASS before NO_THEOREM."""
    found = set(verdicts)
    return next((v for v in _WORST_FIRST if v in found), Verdict.UNDECIDED)


def deciding(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes that have a say: what no guarantee demands is measured, and decides nothing."""
    return [o for o in outcomes if o.measured is None]


def in_doubt(outcomes: Iterable[Outcome]) -> bool:
    """Return whether a case differs from what is right, perhaps with reason: no other makes up for it."""
    return any(o.doubtful for o in outcomes)


# -- one line ------------------------------------------------------------------------------------------


def unexpected(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are no declared known defect."""
    return [finding for finding in findings if not finding.expected]


def line_verdict(line: Line) -> Verdict:
    """Sum up a line: the worst that happened; PASS needs at least one decided case and none in doubt.

    Cases with nothing to compute do not make up for undecided ones.

    What is found stands, but where the verifier itself failed, nothing else is said.
    """
    if line.skipped:
        return Verdict.SKIPPED
    news = unexpected(line.findings)
    if line.counts[Verdict.ERROR] and not news:
        return Verdict.ERROR
    if line.findings:
        found = {finding.verdict for finding in news or line.findings}
        return next(v for v in _FINDINGS_WORST_FIRST if v in found)
    return Verdict.PASS if _passed(line) and not line.doubtful else Verdict.UNDECIDED


def _passed(line: Line) -> int:
    """Return how many cases passed; those without elements tell nothing where others are undecided."""
    return line.counts[Verdict.PASS] - (line.empty if line.counts[Verdict.UNDECIDED] else 0)


def none_judged(line: Line) -> bool:
    """Return whether no case inside the domain was judged."""
    return not set(line.counts) - {Verdict.SKIPPED}


def no_case_left(line: Line) -> bool:
    """Return whether nothing was decided because known defects leave no case of the domain."""
    nothing = not line.findings and none_judged(line)
    return line_verdict(line) is Verdict.UNDECIDED and nothing and line.left_out > 0


def known_alone(line: Line) -> bool:
    """Return whether declared known defects alone have caused the verdict of a line."""
    confirmed = bool(line.findings) and not unexpected(line.findings)
    return (confirmed and line_verdict(line) is not Verdict.ERROR) or no_case_left(line)


def only_measured(line: Line) -> bool:
    """Return whether all that is to be told of a line was measured, and decides nothing."""
    return bool(line.measured) and none_judged(line) and not line.findings


def begun(line: Line) -> bool:
    """Return whether anything was run, or there is a reason why nothing is."""
    seen = line.counts.total() + line.outside + line.measured.total() + len(line.findings) + line.left_out
    return bool(line.skipped) or line.listed > 0 or seen > 0


def worst_line(lines: Iterable[Line]) -> Line:
    """Return the line that speaks for all of them: none of the others looks worse.

    A finding comes first, then a failure of the verifier itself, then what a known defect has caused, then
    what is undecided.
    """
    return min(lines, key=_looks)


def _looks(line: Line) -> tuple[int, int, bool]:
    """Return what orders lines, the worst first."""
    return how_bad(line_verdict(line), known=known_alone(line))


def how_bad(verdict: Verdict, *, known: bool) -> tuple[int, int, bool]:
    """Return what orders verdicts of lines, the worst first; known: known defects alone have caused it."""
    if verdict in _FINDINGS_WORST_FIRST:
        return 2 if known else 0, _FINDINGS_WORST_FIRST.index(verdict), known
    return 1 if verdict is Verdict.ERROR else 3, _WORST_FIRST.index(verdict), known


class Conformance(Enum):
    """What a line is in a user's own tests."""

    CONFORMS = "conforms"
    NOT_RUN = "not run"
    FAILS = "fails"
    VERIFIER_FAILED = "the verifier failed"
    NO_CASE_LEFT = "no case left"
    UNDECIDED = "undecided"


def conformance(line: Line) -> Conformance:
    """Return what a test says of a line: one on which nothing could be decided never passes."""
    verdict = line_verdict(line)
    if verdict is Verdict.SKIPPED:
        return Conformance.NOT_RUN
    if unexpected(line.findings):
        return Conformance.FAILS
    if verdict is Verdict.ERROR:
        return Conformance.VERIFIER_FAILED
    if no_case_left(line):
        return Conformance.NO_CASE_LEFT
    return Conformance.UNDECIDED if verdict is Verdict.UNDECIDED else Conformance.CONFORMS


# -- what ran ------------------------------------------------------------------------------------------


def counted_functions(sources: SourceMap, found: Reach) -> list[SourceFunction]:
    """Return the functions of which a pass should speak.

    A header of device functions serves many kernels: what no launched kernel was compiled from is left out,
    for kernels that were not launched stand for it.
    """
    return [f for f in sources.functions if f.entry or _is_python(f.path) or f.place in found.compiled]


def counted_loops(sources: SourceMap, found: Reach) -> list[SourceLoop]:
    """Return the loops of counted functions; of CUDA functions that ran, those that compiled code has."""
    about = counted_functions(sources, found)
    ran = [f for f in about if f.place in found.functions]
    compiled = {place for place, _ in found.loops}
    return [
        loop
        for loop in sources.loops
        if any(_holds(f, loop) for f in about)
        and (_is_python(loop.path) or loop.place in compiled or not any(_holds(f, loop) for f in ran))
    ]


def _holds(function: SourceFunction, loop: SourceLoop) -> bool:
    return function.path == loop.path and loop.place.line in function.lines


def _is_python(path: str) -> bool:
    return path.endswith(".py")


def turned_twice(found: Reach, loop: SourceLoop) -> bool:
    """Return whether a loop has been more than a sequence: what goes from turn to turn was put to use."""
    return any(place == loop.place and turned > 1 for place, turned in found.loops)


def reach_known(sources: SourceMap, found: Reach) -> bool:
    """Return whether it is known which functions and loops ran; of sources without any it always is."""
    return not (sources.unread or found.unfollowed) and ("code" in found.recorded or not sources.functions)


def reached(sources: SourceMap, found: Reach) -> float:
    """Return the fraction of functions that ran and of loops that turned more than once; 1 of none."""
    functions, loops = counted_functions(sources, found), counted_loops(sources, found)
    done = sum(f.place in found.functions for f in functions) + sum(turned_twice(found, one) for one in loops)
    return done / (len(functions) + len(loops)) if functions or loops else 1.0


def reach_suffices(sources: SourceMap, found: Reach, required: float) -> bool:
    """Return whether so large a fraction of functions and loops is known to have run."""
    return reach_known(sources, found) and reached(sources, found) >= required


# -- a whole run ---------------------------------------------------------------------------------------


def exit_status(
    lines: Sequence[Line],
    *,
    errors: Sequence[str] = (),
    unusable: Sequence[str] = (),
    interrupted: bool = False,
    unmet: bool = False,
    contradicted: bool = False,
) -> int:
    """Return 1 with unexpected findings, 4 if the verifier itself failed, 3 if nothing was decided, 0 else.

    It is 1, too, where something else that is required is not so.
    It is 130 if the audit was interrupted, and 2 if a file or a subject could not be used, or a case not be
    saved.
    What is found stands: it outweighs a failure of the verifier elsewhere.

    errors: failures of the verifier on whole lines. unusable: files that could not be loaded, and
    subjects whose declarations name what does not exist.
    unmet: something that is required (reach, an error, a baseline) is not so. contradicted: the same is found
    wrong and certified to be right, after which no finding can be trusted: 4.
    """
    findings = [finding for line in lines for finding in line.findings]
    if interrupted:
        return 130
    if unusable or any(finding.unwritten for finding in findings):
        return 2
    if contradicted:
        return 4
    if unexpected(findings) or unmet:
        return 1
    if errors or any(line.counts[Verdict.ERROR] for line in lines):
        return 4
    # A confirmed known defect gives a line its verdict; the other cases may be decided all the same.
    decided = any(line_verdict(line) is Verdict.FAIL or _passed(line) for line in lines)
    return 0 if decided else 3


def replay_status(finding: Finding | None, outcomes: Iterable[Outcome]) -> int:
    """Return 1 if a saved case still fails, 4 if the verifier itself failed, 0 if it passes, 3 otherwise."""
    verdicts = {outcome.verdict for outcome in outcomes}
    if finding is not None:
        return 1
    if Verdict.ERROR in verdicts:
        return 4
    return 0 if Verdict.PASS in verdicts else 3
