"""A few cheap cases of the decisive checks on a declaration, before it is proposed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from verifier.audit.examination import Examination
from verifier.checks import check
from verifier.commands.describing.calling import Calling
from verifier.commands.describing.claims import cases_of
from verifier.commands.describing.trials import Trials
from verifier.execution import Runner
from verifier.execution.backends import default_backend
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.subject import Domain, Subject
from verifier.records.verdict import BAD, Verdict
from verifier.subjects.load_file import LoadError, load

CHECKS = ("forward_error", "gradient", "saved_statistics", "running_bound", "memory")
"""Checks that decide most: those that a declaration allows are tried, in this order."""
FOUND = BAD | {Verdict.REFUSED}
CASES, COMPILED_CASES = 5, 2
"""Cases of each check and dtype: torch, compiled."""


def refuted(trials: Trials, lines: Sequence[str], calling: Calling, runner_of: type[Runner]) -> list[str]:
    """Return what a short audit finds against a declaration, as it is printed; nothing if it holds.

    lines: the declaration and the adapter, if there is one.
    """
    text = "\n".join(lines)
    if calling.plain:
        text = text.replace("@subject(", "declared = subject(") + f"({trials.name})"
    path = trials.write(text + "\n")
    try:
        # The last: a function that is declared already stands before it.
        declared = [v for v in vars(load(path).module).values() if isinstance(v, Subject)][-1]
    except LoadError as error:
        return [f"this declaration does not load: {error}"]
    if calling.plain:  # its function is of another file, where a child would find it without a declaration
        declared = declared.differing(path=path, name="declared")
    place, missing = default_backend(declared)
    if place is None:
        return [f"not tried: {missing}"]
    with runner_of(place) as runner:
        return list(itertools.islice(_found(declared, runner), 2))


def _found(declared: Subject, runner: Runner) -> Iterator[str]:
    """Yield the first finding of each check."""
    the_op = op(declared.op)
    wanted = CASES if declared.language == "torch" else COMPILED_CASES
    for name in CHECKS:
        for dtype in declared.dtypes:
            made = check(name)
            if made.skips(declared, the_op, dtype, runner.backend):
                continue
            plan = made.plan(declared, the_op)
            plan = plan if declared.language == "torch" else plan.few_shapes()
            examination = Examination(subject=declared, check_name=name, dtype=dtype, runner=runner)
            every = cases_of(declared, dtype, plan, gradients=plan.gradients)
            cases = itertools.islice((c for c in every if _promised(declared, c)), wanted)
            bad = next((o for c in cases for o in examination.judge(c)[0] if o.verdict in FOUND), None)
            if bad is not None:
                yield f"refuted: {name} in {dtype} finds, on a few cases: {bad.message}"
                break


def _promised(declared: Subject, case: Case) -> bool:
    """Return whether a case lies inside the domain, where nothing may be refused."""
    domain = declared.domain or Domain()
    return not domain.excludes(case) and not domain.may_refuse(case)
