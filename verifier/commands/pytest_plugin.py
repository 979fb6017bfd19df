"""The pytest plugin: `pytest --kernel my_kernel.py -n auto` runs every check on a kernel file's subjects."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verifier.audit.request import BUDGETS

if TYPE_CHECKING:
    from _pytest._code.code import TerminalRepr, TracebackStyle

    from verifier.audit.run_audit import Job
    from verifier.records.verdict import Line


OPTIONS: dict[str, dict[str, object]] = {
    "kernel": {
        "action": "append",
        "default": [],
        "metavar": "FILE",
        "help": "verify the subjects of this kernel file instead of collecting tests (repeatable)",
    },
    "kernel-backend": {
        "default": None,
        "metavar": "NAME",
        "help": "where --kernel runs: cuda, machine, interpreter, eager",
    },
    "kernel-budget": {
        "default": None,
        "metavar": "BUDGET",
        "help": "smoke, quick, standard, deep or a number of cases",
    },
    "kernel-seed": {"type": int, "default": None, "metavar": "N", "help": "seed of the search"},
}
"""The options by name. Each is --norm-NAME, and --NAME where no other plugin or conftest has that name."""


_DEFAULTS: dict[str, object] = {"budget": "quick", "seed": 0}
_SETTINGS = pytest.StashKey[dict[str, object]]()
_LINES = pytest.StashKey[list["Line"]]()


def option(config: pytest.Config, name: str) -> Any:
    """Return the value of one of `OPTIONS`, by whichever of its names it was given.

    What was not given stands in [tool.norm-verifier] of pyproject.toml, or is the default.
    """
    given = config.getoption(_dest(name))
    key = name.removeprefix("kernel-")
    return given if given is not None else setting(config, key, _DEFAULTS.get(key))


def setting(config: pytest.Config, key: str, default: object = None) -> object:
    """Return a parameter of the command `audit` as pyproject.toml sets it; with --kernel alone it is read."""
    if _SETTINGS not in config.stash:
        from verifier.commands.project_settings import project_settings

        asked = config.getoption(_dest("kernel"))
        config.stash[_SETTINGS] = project_settings(config.rootpath) if asked else {}
    return config.stash[_SETTINGS].get(key, default)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options under the names that nobody else has."""
    group = _group(parser)
    for name, attributes in OPTIONS.items():
        group.addoption(f"--norm-{name}", dest=_dest(name), **attributes)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Add the short names, if they are asked for and still free when all conftests have added theirs.

    To be earlier would be to take a name from a conftest, which then could not be loaded.
    """
    asked = [n for n in OPTIONS if {"-h", "--help"} & set(args) or any(_names(a, n) for a in args)]
    free = [n for n in asked if _is_free(parser, n)]
    # Until then pytest takes the values of these options for paths, and would look for conftests there.
    paths = early_config.known_args_namespace.file_or_dir
    for before, value in itertools.pairwise(args):
        if before in {f"--{n}" for n in free} and value in paths:
            paths.remove(value)
    try:
        yield
    finally:
        for name in (n for n in free if _is_free(parser, n)):
            _group(parser).addoption(f"--{name}", dest=_dest(name), **OPTIONS[name])


def _group(parser: pytest.Parser) -> pytest.OptionGroup:
    return parser.getgroup("norm-verifier", "verification of normalization kernels")


def _dest(name: str) -> str:
    return f"norm_verifier_{name.replace('-', '_')}"


def _names(argument: str, name: str) -> bool:
    return argument == f"--{name}" or argument.startswith(f"--{name}=")


def _is_free(parser: pytest.Parser, name: str) -> bool:
    """Return whether nobody has added an option of this name; one that rejects the value is somebody's."""
    try:
        _, unknown = parser.parse_known_and_unknown_args([f"--{name}=0"])
    except pytest.UsageError:
        return False
    return f"--{name}=0" in unknown


def pytest_configure(config: pytest.Config) -> None:
    """Reject wrong options at once."""
    try:
        budget = option(config, "kernel-budget")
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if budget not in BUDGETS and not (budget.isdigit() and int(budget) > 0):
        raise pytest.UsageError(f"--kernel-budget {budget!r} is neither {', '.join(BUDGETS)} nor a number")
    for name in option(config, "kernel"):
        if not Path(name).is_file():
            raise pytest.UsageError(f"--kernel {name}: no such file")


def pytest_collection(session: pytest.Session) -> None:
    """With --kernel, collect nothing else unless paths are named as well."""
    config = session.config
    if option(config, "kernel") and config.args_source != config.ArgsSource.ARGS:
        config.args = []


class KernelFile(pytest.Collector):
    """A kernel file as a collector of one test per subject, check and dtype."""

    def __init__(self, *, file: Path, **rest: Any) -> None:
        """Remember the file."""
        super().__init__(**rest)
        self.file = file

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the tests, sorted by id."""
        from verifier.commands.conformance import parameters
        from verifier.execution.backends import backend
        from verifier.execution.trial_import import try_out
        from verifier.records.printable import line
        from verifier.subjects.load_file import LoadError, load_subjects

        try:
            try_out(self.file)
            subjects = load_subjects(self.file)
            wanted = option(self.config, "kernel-backend")
            if wanted:
                backend(wanted)
        except (LoadError, ValueError) as error:
            raise self.CollectError(str(error)) from error
        chosen = [one for one in subjects if one.name in self._only("subject", one.name)]
        for name, job in parameters(tuple(chosen), backend=wanted):
            if job.dtype in self._only("dtype", job.dtype) and job.check in self._only("check", job.check):
                yield KernelItem.from_parent(self, name=line(name), job=self._settled(job))
        required = setting(self.config, "require")
        if isinstance(required, list) and any(text.startswith("reach=") for text in required):
            for one in chosen:
                key = (str(one.path), one.name)
                yield ReachItem.from_parent(self, name=f"{line(one.name)}-reach", key=key, required=required)

    def _settled(self, job: Job) -> Job:
        """Return a job on the device, and with the configurations, that pyproject.toml says."""
        from verifier.audit.request import ALL_CONFIGURATIONS
        from verifier.audit.run_audit import settled

        number, which = setting(self.config, "multiprocessors", 0), setting(self.config, "autotune")
        return settled(job, int(str(number)), str(which or ALL_CONFIGURATIONS))

    def _only(self, key: str, name: str) -> list[str]:
        """Return what pyproject.toml restricts tests to, or a name itself."""
        names = setting(self.config, key)
        return names if isinstance(names, list) and names else [name]


class KernelItem(pytest.Item):
    """One check on one subject with one dtype."""

    def __init__(self, *, job: Job, **rest: Any) -> None:
        """Remember the job."""
        super().__init__(**rest)
        self.job = job

    def runtest(self) -> None:
        """Run the check; findings are saved so that they can be replayed."""
        from verifier.audit.save import save_line
        from verifier.commands.conformance import FINDINGS_FOLDER, assert_conforms, examine_job

        line = examine_job(
            self.job,
            budget=option(self.config, "kernel-budget"),
            seed=option(self.config, "kernel-seed"),
        )
        self.config.stash.setdefault(_LINES, []).append(line)
        save_line(line, self.config.invocation_params.dir / FINDINGS_FOLDER)
        assert_conforms(line)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: TracebackStyle | None = None
    ) -> str | TerminalRepr:
        """Show the finding itself, without a traceback through the verifier."""
        from verifier.audit.request import SelectionError
        from verifier.commands.conformance import VerifierError

        if isinstance(excinfo.value, AssertionError | SelectionError | VerifierError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Name the kernel file."""
        return Path(self.job.path), None, self.name


class ReachItem(pytest.Item):
    """Whether so much of one subject ran in the tests before as pyproject.toml requires."""

    def __init__(
        self, *, name: str, parent: pytest.Collector, key: tuple[str, str], required: list[str]
    ) -> None:
        """Remember the subject's path and name, and what is required."""
        super().__init__(name=name, parent=parent)
        self.key, self.required = key, required

    def runtest(self) -> None:
        """Join what the tests before saw run; workers see only a part of it."""
        from verifier.audit import rules
        from verifier.audit.reach_of_subjects import reach_of_lines
        from verifier.audit.report.reach_text import unmet
        from verifier.audit.request import parse_requirements

        if hasattr(self.config, "workerinput"):
            pytest.skip("reach is known only where all tests of a subject run in one process, without -n")
        lines: list[Line] = self.config.stash.setdefault(_LINES, [])
        found = reach_of_lines(lines, [self.key])
        required = parse_requirements(self.required).reach or 0.0
        if not found:
            pytest.fail(f"{self.key[1]}: reach={required:g} is required, and no test ran it", pytrace=False)
        for one in found:
            if not rules.reach_suffices(one.sources, one.found, required):
                pytest.fail(unmet(one, required).text, pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Name the kernel file."""
        return Path(self.key[0]), None, self.name


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of the kernel files named on the command line."""
    for name in option(config, "kernel"):
        file = Path(name).resolve()
        collector = KernelFile.from_parent(session, name=name, file=file, nodeid=name)
        # By way of a report, so that pytest counts the tests as collected.
        report = collector.ihook.pytest_make_collect_report(collector=collector)
        if not report.passed:
            raise pytest.UsageError(str(report.longrepr))
        collector.ihook.pytest_collectreport(report=report)
        items.extend(report.result)
