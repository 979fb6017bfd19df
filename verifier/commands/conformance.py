"""Tests for a user's own test module: every check on a subject, one test per check and dtype."""

from __future__ import annotations

import os
from collections.abc import Callable

from verifier.audit.report.finding_text import failure_text
from verifier.audit.request import BUDGETS, SelectionError
from verifier.audit.rules import Conformance, conformance, unexpected
from verifier.audit.run_audit import Job, run_job, runs_on, unknown_word
from verifier.audit.save import save_line
from verifier.checks import checks
from verifier.records.printable import block
from verifier.records.subject import Subject
from verifier.records.verdict import Line

FINDINGS_FOLDER = "norm-verifier-findings"
"""Where pytest saves cases of findings: in the folder that it was started in."""


class VerifierError(RuntimeError):
    """The verifier itself failed: nothing is said about the subject."""


def jobs_of(subject: Subject, *, backend: str | None = None, all_dtypes: bool = True) -> list[Job]:
    """List the jobs of a subject: every check on every dtype.

    With `all_dtypes` false only forward_error and gradient run on every dtype, the others on one:
    the first, or float64 where a check takes nothing else.
    """
    path, unknown = str(subject.path), unknown_word(subject)
    return [
        Job(path=path, subject=subject.name, check=name, dtype=dtype, backend=backend, unknown=unknown)
        for name in checks()
        for dtype in subject.dtypes
        if all_dtypes or runs_on(subject, name, dtype)
    ]


def examine_job(job: Job, *, budget: str = "quick", seed: int = 0) -> Line:
    """Run one job with a named budget or a number of cases.

    Raises:
        SelectionError: its declaration names what does not exist.
        VerifierError: the verifier itself failed.

    """
    if job.unknown:
        raise SelectionError(f"{job.subject}: {job.unknown}")
    cases = BUDGETS.get(budget) or int(budget)
    result = run_job(job, (cases, None), seed)
    if isinstance(result, str):
        raise VerifierError(block(result))
    return result


def assert_conforms(line: Line) -> None:
    """Raise AssertionError with every unexpected finding; skip the running test if it was not run.

    A line on which nothing could be decided fails too: it is never a pass.

    Raises:
        VerifierError: nothing was found, and the verifier itself failed on some case.

    """
    import pytest

    found = conformance(line)
    if found is Conformance.NOT_RUN:
        pytest.skip(block(line.skipped))
    if found is Conformance.FAILS:
        raise AssertionError("\n\n".join(failure_text(f) for f in unexpected(line.findings)))
    if found is Conformance.VERIFIER_FAILED:
        from verifier.audit.report.terminal import own_failures

        raise VerifierError(block("\n".join(own_failures([line])).strip()))
    if found is Conformance.NO_CASE_LEFT:
        pytest.skip(f"each of the {line.left_out} cases drawn inside the domain shows a known defect")
    if found is Conformance.UNDECIDED:
        reasons = [*(f"{n}: {text}" for text, n in line.undecided.items()), *line.notes]
        excluded = f" ({'; '.join(reasons)})" if reasons else ""
        counts = ", ".join(f"{n} {v}" for v, n in line.counts.items()) or "no case"
        raise AssertionError(
            block(f"{line.subject} {line.check} {line.dtype}: nothing was decided: {counts}{excluded}")
        )


def conformance_tests(
    subject: Subject, *, backend: str | None = None, budget: str | None = None
) -> Callable[..., None]:
    """Return a parametrized test function; assign it to a name that begins with `test_`.

    subject: the decorated kernel. backend: where to run (default: the best that is here).
    budget: "smoke", "quick", "standard", "deep" or a number of cases (default: NORM_VERIFIER_BUDGET or
    quick).
    Cases of findings are saved in the folder norm-verifier-findings, and the report says how to replay them.

    Example::

        from verifier import conformance_tests
        from my_kernels import my_layer_norm

        test_my_layer_norm = conformance_tests(my_layer_norm)

    """
    import pytest

    jobs = jobs_of(subject, backend=backend)
    wanted = budget or os.environ.get("NORM_VERIFIER_BUDGET", "quick")

    @pytest.mark.parametrize("job", jobs, ids=[f"{job.check}-{job.dtype}" for job in jobs])
    def test(job: Job, pytestconfig: pytest.Config) -> None:
        try:
            line = examine_job(job, budget=wanted)
            save_line(line, pytestconfig.invocation_params.dir / FINDINGS_FOLDER)
            assert_conforms(line)
        except (AssertionError, VerifierError) as error:
            told = str(error)
        else:
            return
        pytest.fail(told, pytrace=False)  # a traceback would lead through the verifier, not to the kernel

    test.__doc__ = f"{subject.name} meets every check."
    return test


def parameters(subjects: tuple[Subject, ...], *, backend: str | None = None) -> list[tuple[str, Job]]:
    """Return (test id, job) for subjects, sorted: identical on all workers."""
    jobs = [job for subject in subjects for job in jobs_of(subject, backend=backend)]
    return sorted(((f"{job.subject}-{job.check}-{job.dtype}", job) for job in jobs), key=lambda item: item[0])
