"""The pytest plugin: `pytest --kernel my_kernel.py -n auto` runs every check on a kernel file's subjects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from verifier.audit import Job


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("norm-verifier", "verification of normalization kernels")
    group.addoption(
        "--kernel",
        action="append",
        default=[],
        metavar="FILE",
        help="verify the subjects of this kernel file instead of collecting tests (repeatable)",
    )
    group.addoption(
        "--kernel-backend", metavar="NAME", help="where --kernel runs: cuda, machine, interpreter, eager"
    )
    group.addoption(
        "--kernel-budget",
        default="quick",
        metavar="BUDGET",
        help="quick, standard, deep or a number of cases",
    )
    group.addoption("--kernel-seed", type=int, default=0, metavar="N", help="seed of the search")


def pytest_configure(config: pytest.Config) -> None:
    """Reject wrong options at once."""
    from_files = config.getoption("--kernel")
    budget = config.getoption("--kernel-budget")
    if budget not in {"quick", "standard", "deep"} and not (budget.isdigit() and int(budget) > 0):
        raise pytest.UsageError(f"--kernel-budget {budget!r} is neither quick, standard, deep nor a number")
    for name in from_files:
        if not Path(name).is_file():
            raise pytest.UsageError(f"--kernel {name}: no such file")


def pytest_collection(session: pytest.Session) -> None:
    """With --kernel, collect nothing else unless paths are named as well."""
    config = session.config
    if config.getoption("--kernel") and config.args_source != config.ArgsSource.ARGS:
        config.args = []


class KernelFile(pytest.Collector):
    """A kernel file as a collector of one test per subject, check and dtype."""

    def __init__(self, *, file: Path, **rest: Any) -> None:
        """Remember the file."""
        super().__init__(**rest)
        self.file = file

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the tests, sorted by id."""
        from verifier.backends import backend
        from verifier.conformance import parameters
        from verifier.loading import LoadError, load_subjects

        try:
            subjects = load_subjects(self.file)
            wanted = self.config.getoption("--kernel-backend")
            if wanted:
                backend(wanted)
        except (LoadError, ValueError) as error:
            raise self.CollectError(str(error)) from error
        for name, job in parameters(subjects, backend=wanted):
            yield KernelItem.from_parent(self, name=name, job=job)


class KernelItem(pytest.Item):
    """One check on one subject with one dtype."""

    def __init__(self, *, job: Job, **rest: Any) -> None:
        """Remember the job."""
        super().__init__(**rest)
        self.job = job

    def runtest(self) -> None:
        """Run the check; findings are saved so that they can be replayed."""
        from verifier.conformance import assert_conforms, examine_job
        from verifier.saving import save_line

        line = examine_job(
            self.job,
            budget=self.config.getoption("--kernel-budget"),
            seed=self.config.getoption("--kernel-seed"),
        )
        save_line(line, self.config.invocation_params.dir / "norm-verifier-findings")
        assert_conforms(line)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the finding itself, without a traceback through the verifier."""
        from verifier.conformance import VerifierError

        if isinstance(excinfo.value, AssertionError | VerifierError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Name the kernel file."""
        return Path(self.job.path), None, self.name


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of the kernel files named on the command line."""
    for name in config.getoption("--kernel"):
        file = Path(name).resolve()
        collector = KernelFile.from_parent(session, name=name, file=file, nodeid=name)
        # By way of a report, so that pytest counts the tests as collected.
        report = collector.ihook.pytest_make_collect_report(collector=collector)
        if not report.passed:
            raise pytest.UsageError(str(report.longrepr))
        collector.ihook.pytest_collectreport(report=report)
        items.extend(report.result)
