"""What an audit sees of a mutant: the first finding kills it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verifier.audit import rules
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.mutation import in_sources
from verifier.audit.mutation.alike import alike
from verifier.audit.mutation.family import copied
from verifier.audit.mutation.mutation import Mutation
from verifier.audit.run_audit import runs_on
from verifier.checks import checks
from verifier.execution import Runner
from verifier.execution.backends import default_backend
from verifier.records.printable import line as one_line
from verifier.records.reach import Reach, SourcePlace, joined
from verifier.records.subject import Subject
from verifier.records.verdict import Line
from verifier.subjects.load_file import LoadError, load_subjects

FIRST = ("forward_error", "gradient", "memory", "saved_statistics", "special_values", "layouts")
"""Checks that decide most, in the order in which they are asked; the others follow."""
CASE_SECONDS = 20.0
"""Of one execution: a mutation may make a loop that never ends."""
BUILD = "build"
"""In the place of a check: the mutant cannot be loaded."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What found a mutant: a check with a dtype, and the verdict and the words of its finding."""

    check: str
    dtype: str = ""
    message: str = ""
    verdict: str = ""


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What became of a mutant, or of the original if `mutation` is None.

    kills: what found it, in the order in which it was asked; none if it survived. code: digests of all
    compiled code that ran. errors: our own failures, which kill nothing. ran: whether the changed place was
    seen to run; None where that is not known. lines: statements of the wrapper that ran. alike: of a mutant
    that nothing killed, at which shapes it is the original for all inputs, in words; "" where that is open.
    """

    mutation: Mutation | None
    kills: tuple[Kill, ...] = ()
    seconds: float = 0.0
    code: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()
    ran: bool | None = None
    lines: frozenset[SourcePlace] = frozenset()
    alike: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """How a mutant is audited.

    cases: of each line. checks: their names, all if there are none. every: ask all checks, even of a mutant
    that one of them has found. dtypes: which are asked, all that are declared if there are none.
    """

    cases: int
    seed: int = 0
    checks: tuple[str, ...] = ()
    every: bool = False
    dtypes: tuple[str, ...] = ()


def fate(path: str, mutation: Mutation | None, question: Question) -> Fate:
    """Audit a copy of a kernel file with a mutation until something is found.

    A mutant that cannot be loaded is killed, by "build".
    """
    with tempfile.TemporaryDirectory(prefix="norm-verifier-mutant-") as folder:
        copy = copied(Path(path), Path(folder), mutation)
        found = fate_of_copy(copy, mutation, question)
        if mutation is None or found.kills or found.errors:
            return found
        return replace(found, alike=alike(Path(path), copy, seconds=CASE_SECONDS))


def fate_of_copy(
    copy: Path, mutation: Mutation | None, question: Question, only: tuple[str, str, str] | None = None
) -> Fate:
    """Audit a kernel file that has a mutation already until something is found.

    only: the names of the one subject, check and dtype that are asked about.
    """
    started = time.monotonic()
    code: frozenset[str] = frozenset()
    errors: list[str] = []
    kills: list[Kill] = []
    reach: list[Reach] = []
    try:
        subjects = load_subjects(copy)
    except LoadError as error:
        kills.append(Kill(check=BUILD, message=one_line(str(error).replace(f"{copy.parent}/", ""))))
        subjects = ()
    for subject, check_name, dtype in lines_in_order(subjects, question.checks, question.dtypes):
        if only not in {None, (subject.name, check_name, dtype)}:
            continue
        line, texts = _line(subject, check_name, dtype, question)
        code |= texts
        reach.append(line.reach)
        errors += line.errors
        for finding in rules.unexpected(line.findings)[:1]:
            verdict = str(finding.verdict)
            text = one_line(finding.outcome.message or verdict)
            kills.append(Kill(check=check_name, dtype=dtype, message=text, verdict=verdict))
        if kills and not question.every:
            break
    seen = in_sources.ran(mutation, subjects, joined(reach)) if mutation and subjects else None
    return Fate(
        mutation=mutation,
        kills=tuple(kills),
        code=code,
        errors=tuple(dict.fromkeys(errors)),
        seconds=time.monotonic() - started,
        ran=seen,
        lines=joined(reach).lines,
    )


def lines_in_order(
    subjects: Sequence[Subject], names: Sequence[str], dtypes: Sequence[str] = ()
) -> list[tuple[Subject, str, str]]:
    """Return subject, check and dtype of each line: what decides most first, on the first dtype first.

    names, dtypes: of which checks and dtypes alone, unless there are none. On dtypes that are named every
    check is asked, as in an audit, also one that is else asked on the first alone.
    """
    wanted = [name for name in checks() if not names or name in names]
    order = [name for name in FIRST if name in wanted] + [name for name in wanted if name not in FIRST]
    asked = {s.name: [d for d in s.dtypes if not dtypes or d in dtypes] for s in subjects}
    every = [(s, n, d) for s in subjects for n in order for d in asked[s.name] if dtypes or runs_on(s, n, d)]
    return sorted(every, key=lambda one: one[2] != asked[one[0].name][0])


def _line(subject: Subject, check_name: str, dtype: str, question: Question) -> tuple[Line, frozenset[str]]:
    """Examine one line until the first finding; also return digests of the code that ran."""
    place, missing = default_backend(subject)
    if place is None:
        skipped = Line(subject=subject.name, check=check_name, dtype=dtype, backend="-", variance="")
        skipped.skipped = missing
        return skipped, frozenset()
    with Runner(place, case_seconds=CASE_SECONDS) as runner:
        examination = Examination(
            subject=subject,
            check_name=check_name,
            dtype=dtype,
            runner=runner,
            budget=Budget(cases=question.cases, findings=1),
            seed=question.seed,
            shrinks=False,
            first_dtype=next((d for d in subject.dtypes if d in question.dtypes), ""),
        )
        line = examination.run()
    return line, frozenset() if examination.code is None else examination.code.texts
