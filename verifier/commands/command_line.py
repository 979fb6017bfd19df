"""The command `norm-verifier`; everything heavy is imported by the command that needs it."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from verifier.audit.run_audit import Job, Report
    from verifier.records.subject import Subject
    from verifier.records.verdict import Line

USAGE_STATUS = 2
OWN_FAILURE_STATUS = 4
INTERRUPTED_STATUS = 130
FINDINGS_FOLDER = Path("norm-verifier-findings")
_process = {"own": False}
"""Whether it is known that nothing else runs in this process."""

app = typer.Typer(
    name="norm-verifier",
    help="Prove or disprove that a normalization kernel is right, forward and backward.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Paths = Annotated[
    list[Path] | None,
    typer.Argument(help="Kernel files; without any, the built-in kernels.", show_default=False),
]
DtypeOption = Annotated[list[str] | None, typer.Option("--dtype", help="Only this dtype (repeatable).")]
CheckOption = Annotated[list[str] | None, typer.Option("--check", help="Only this check (repeatable).")]
SubjectOption = Annotated[list[str] | None, typer.Option("--subject", help="Only this subject (repeatable).")]
BackendOption = Annotated[
    str | None, typer.Option("--backend", help="Where to run: cuda, machine, interpreter, eager.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the search.")]
WorkersOption = Annotated[int, typer.Option("--workers", min=0, help="Worker processes; 0: one per core.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the report to this file.")]
FindingsOption = Annotated[Path, typer.Option("--findings", help="Folder for the cases of findings.")]


def main(*, own_process: bool = False) -> None:
    """Run the command; what the parser rejects is said in one line, our own failure with its traceback.

    own_process: nothing else runs in this process; it may be copied to save the imports of others.
    """
    from verifier.commands.output_pipe import outlive_readers

    _process["own"] = own_process
    outlive_readers()
    _read_paths_as_utf8()
    _speak_the_terminals_characters()
    try:
        status = app(standalone_mode=False)
    except Exception as error:
        # The parser's own exceptions, from whichever package typer takes them: they know how they are shown.
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(getattr(error, "message", str(error)))
            sys.exit(USAGE_STATUS)
        if not hasattr(error, "format_message"):
            if type(error).__name__ == "Abort":
                _complain("interrupted")
                sys.exit(INTERRUPTED_STATUS)
            from verifier.records.printable import block

            typer.echo(block(traceback.format_exc()), err=True)
            _complain("the verifier itself failed; this says nothing about a kernel")
            sys.exit(OWN_FAILURE_STATUS)
        _complain(error.format_message())
        sys.exit(USAGE_STATUS)
    if status == INTERRUPTED_STATUS:  # by the parser: who ends with this status after a line of its own exits
        _complain("interrupted")
    sys.exit(status if isinstance(status, int) else 0)


def _copy_ahead(*backends: str, workers: int = 1) -> None:
    """Copy this process, while it has loaded no kernel, for several workers, or else for these backends."""
    from verifier.audit.worker_pool import WORKERS
    from verifier.execution.preloaded import copy_ahead

    if not _process["own"]:
        return
    if workers > 1:
        copy_ahead(children=WORKERS)
    else:
        copy_ahead(*backends)


def _read_paths_as_utf8() -> None:
    """Begin again where Python takes the names of files for ASCII (LC_ALL=C, PYTHONUTF8=0).

    Compilers and our own files name a kernel's path in UTF-8, whatever the locale.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (this very command)


def _speak_the_terminals_characters() -> None:
    """Write what a terminal cannot show as escapes, where Python would end with an error (LC_ALL=C)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _version(wanted: bool) -> None:
    if wanted:
        from verifier import __version__

        typer.echo(f"norm-verifier {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prove or disprove that a normalization kernel is right, forward and backward."""


@app.command()
def audit(  # noqa: PLR0917 (typer reads options off the signature)
    paths: Paths = None,
    dtype: DtypeOption = None,
    check: CheckOption = None,
    subject: SubjectOption = None,
    backend: BackendOption = None,
    budget: Annotated[str, typer.Option(help="quick, standard, deep, or a time such as 300s.")] = "quick",
    seed: SeedOption = 0,
    workers: WorkersOption = 0,
    json_file: JsonOption = None,
    findings: FindingsOption = FINDINGS_FOLDER,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="reach=0.95: status 1 unless so large a fraction of functions ran and of loops turned twice."
        ),
    ] = None,
) -> None:
    """Run every check on every kernel and report the proved bounds, the errors and the findings.

    Without kernels, dtypes or subjects named, forward_error and gradient run on every dtype of the built-in
    kernels and the other checks on one.

    Exit status: 0 no unexpected finding, 1 findings or a --require that is not met, 2 wrong usage or a file
    that could not be loaded or written, 3 nothing was decided, 4 the verifier itself failed, 130 interrupted.
    """
    with _clear_errors(), _reported(json_file, seed=seed, budget=budget):
        from verifier.audit.run_audit import default_workers, parse_requirements, parse_seconds, select
        from verifier.audit.search import BUDGETS

        if budget not in BUDGETS:
            parse_seconds(budget)
        required = parse_requirements(require or ())
        _usable_folder(findings)
        workers = workers or default_workers()
        _copy_ahead("machine", workers=workers)
        files, unusable = _files(paths)
        jobs = select(
            files,
            dtypes=dtype or (),
            check_names=check or (),
            backend_name=backend,
            subjects=subject or (),
            all_dtypes=bool(paths or dtype or subject),
        )
        report = _with_progress(jobs, findings, budget=budget, seed=seed, workers=workers)
        report.unusable, report.required_reach = unusable, required
    told = Told(lines=not sys.stdout.isatty())
    _finish(report, jobs, json_file, findings, told=told, cost_of=dtype if paths else None)


@app.command()
def fuzz(  # noqa: PLR0917
    paths: Annotated[list[Path], typer.Argument(help="Kernel files.")],
    dtype: DtypeOption = None,
    check: CheckOption = None,
    subject: SubjectOption = None,
    backend: BackendOption = None,
    budget: Annotated[str, typer.Option(help="How long, such as 60s; or quick, standard, deep.")] = "60s",
    seed: SeedOption = 0,
    json_file: JsonOption = None,
    findings: FindingsOption = FINDINGS_FOLDER,
) -> None:
    """Search for failures as long as the budget lasts; findings are shrunk and saved as they are found."""
    with _clear_errors(), _reported(json_file, seed=seed, budget=budget):
        from verifier.audit.fuzz import fuzz as run
        from verifier.audit.run_audit import select

        _usable_folder(findings)
        files, unusable = _files(paths)
        jobs = select(
            files,
            dtypes=dtype or (),
            check_names=check or (),
            backend_name=backend,
            subjects=subject or (),
        )
        report = run(jobs, budget=budget, seed=seed, folder=findings, say=_say)
        report.unusable = unusable
    _finish(report, jobs, json_file, findings, told=Told(findings=True))


@app.command()
def mutate(  # noqa: PLR0917
    path: Annotated[Path, typer.Argument(help="A kernel file.")],
    check: CheckOption = None,
    budget: Annotated[str, typer.Option(help="Of each line: quick, standard or deep.")] = "quick",
    sample: Annotated[
        int | None, typer.Option(min=1, help="So many mutants, chosen by the seed; else all.")
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Ask every check, not only until one finds it.")
    ] = False,
    seed: SeedOption = 0,
    workers: WorkersOption = 0,
    json_file: JsonOption = None,
) -> None:
    """Change a kernel's source in one place at a time, and count which of the mutants an audit finds.

    A survivor is code that no check has run or seen: a gap of the audit, or a change that changes nothing.

    Exit status: 0 all that was judged is found, 1 some survived or the original has findings, 2 wrong usage,
    3 nothing was judged, 130 interrupted.
    """
    with _clear_errors():
        from verifier.audit.mutation.kills import Question
        from verifier.audit.mutation.mutants import document, fate_in_a_line, lines_of, run_mutants, status_of
        from verifier.audit.run_audit import default_workers, select
        from verifier.audit.search import BUDGETS

        if budget not in BUDGETS:
            raise typer.BadParameter(f"{budget!r} is none of {', '.join(BUDGETS)}", param_hint="--budget")
        _writable(json_file)
        workers = workers or default_workers()
        _copy_ahead(workers=max(workers, 2))  # mutants have processes of their own, however few
        files, _ = _files([path])
        select(files, check_names=check or ())
        question = Question(cases=BUDGETS[budget], seed=seed, checks=tuple(check or ()), every=matrix)
        found = run_mutants(
            files[0].resolve(),
            question,
            workers=workers,
            sample=sample,
            on_fate=lambda one, of: typer.echo(f"{fate_in_a_line(one)} (of {of})", err=True),
        )
    for line in lines_of(found):
        _say(line)
    if json_file is not None and (why := _write(json_file, document(found))):
        _stop(f"could not be written: {why}")
    raise typer.Exit(status_of(found))


@app.command("list")
def list_subjects(paths: Paths = None) -> None:
    """List kernels, ops, variance algorithms, checks and backends."""
    with _clear_errors():
        from verifier.commands.listing import listing

        files, unusable = _files(paths)
        for line in listing(files):
            _say(line)
    if unusable:
        raise typer.Exit(USAGE_STATUS)


@app.command()
def replay(
    case: Annotated[Path, typer.Argument(help="A case file, as a finding names it.")],
    kernel: Annotated[
        Path | None, typer.Option(help="Kernel file, if it has moved since the case was saved.")
    ] = None,
    backend: BackendOption = None,
) -> None:
    """Run one saved case again and report it."""
    with _clear_errors():
        from verifier.audit.replay import replay as run

        text, status = run(case, kernel=kernel, backend_name=backend)
    _say(text)
    raise typer.Exit(status)


@app.command()
def explain(  # noqa: PLR0917
    target: Annotated[Path, typer.Argument(help="A case file, as a finding names it, or a kernel file.")],
    subject: Annotated[str | None, typer.Option(help="Which subject, if a kernel file has several.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a kernel's tensors; by default its first.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a kernel's input.")] = 16,
    columns: Annotated[int, typer.Option("-N", "--columns", min=1, help="Columns of a row.")] = 512,
    kappa: Annotated[float, typer.Option(min=0.0, help="|mean| / std of a row, to a power of ten.")] = 0.0,
    seed: SeedOption = 0,
    kernel: Annotated[
        Path | None, typer.Option(help="Kernel file, if it has moved since the case was saved.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Say on which source line each output and gradient of a compiled kernel loses its bits.

    The kernel runs on the machine; every instruction's rounding goes to the line that made it, and the parts
    add up to the error against the exact result.
    """
    with _clear_errors():
        from verifier.commands.explain import case_for, case_of, document, explain, lines_of, subject_of
        from verifier.execution import Runner

        _writable(json_file)
        _copy_ahead("machine")
        if target.suffix == ".py":
            found = subject_of(target, subject)
            case = case_for(found, dtype, rows, columns, kappa, seed)
        else:
            found, case = case_of(target, kernel)
        with Runner("machine") as runner:
            explained = explain(found, case, runner=runner)
    for line in lines_of(explained):
        _say(line)
    if json_file is not None and (why := _write(json_file, document(explained))):
        _stop(f"could not be written: {why}")


@app.command()
def describe(
    path: Annotated[Path, typer.Argument(help="A Python file with a kernel's wrapper function.")],
    function: Annotated[str | None, typer.Option(help="Name of the function, if there are several.")] = None,
) -> None:
    """Propose a declaration for a kernel that has none, from its signature and its behaviour."""
    with _clear_errors():
        from verifier.commands.describe import describe as run

        text = run(path, function)
    _say(text)


@app.command()
def bounds(
    columns: Annotated[int, typer.Option("-N", "--columns", min=1, help="Columns of a row.")] = 4096,
    kappa: Annotated[float, typer.Option(min=0.0, help="|mean| / standard deviation.")] = 0.0,
    dtype: Annotated[
        str, typer.Option(help="Format of the rows; sums are in float32, or in a wider one.")
    ] = "float32",
    tree: Annotated[
        str,
        typer.Option(
            help="Declared order of the sums: sequential, pairwise, any_order, lanes=256, chunks=8, "
            "depth=20, or a call as in a declaration: 'tile(block=1024, threads=128)'."
        ),
    ] = "lanes=256",
    plot: Annotated[
        Path | None, typer.Option(help="Draw error against kappa to this file: PNG, SVG or PDF.")
    ] = None,
) -> None:
    """Show the proved error bounds of every variance algorithm."""
    with _clear_errors():
        from verifier.commands.show_bounds import show_bounds

        _writable(plot)
        for line in show_bounds(columns=columns, kappa=kappa, dtype=dtype, tree_text=tree, plot_file=plot):
            _say(line)


def _files(paths: list[Path] | None) -> tuple[list[Path], list[str]]:
    """Return the kernel files that can be loaded, and what is wrong with the others; it is said at once.

    Raises:
        LoadError: there is one file, and it cannot be loaded.

    """
    from verifier.execution.trial_import import try_out
    from verifier.subjects.load_file import (
        LoadError,
        NoSubjectError,
        builtin_files,
        is_skeleton,
        load_subjects,
    )

    if not paths:
        return builtin_files(), []
    usable, wrong = [], []
    for path in dict.fromkeys(paths):
        try:
            try_out(path)
            load_subjects(path)
        except LoadError as error:
            if len(paths) == 1:
                raise
            if isinstance(error, NoSubjectError) and is_skeleton(path) and not all(map(is_skeleton, paths)):
                continue
            wrong.append(str(error))
            _complain(str(error))
        else:
            usable.append(path)
    if not usable:
        raise typer.Exit(USAGE_STATUS)
    return usable, wrong


@contextmanager
def _reported(json_file: Path | None, *, seed: int, budget: str) -> Iterator[None]:
    """Reject a file that cannot be written; write a report of nothing where an interrupt comes before any."""
    _writable(json_file)
    try:
        yield
    except KeyboardInterrupt:
        from verifier.audit.report.json_frame import frame

        told = frame(seed=seed, budget=budget, status=INTERRUPTED_STATUS, interrupted=True)
        if json_file is not None and (why := _write(json_file, {**told, "costs": []})):
            _complain(f"could not be written: {why}")
        raise


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn what a user can cause into one clear line and status 2."""
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except (ValueError, OSError) as error:
        _stop(str(error))
    except Exception as error:
        from verifier.subjects.load_file import LoadError

        if isinstance(error, LoadError):
            _stop(str(error))
        raise


def _stop(message: str) -> NoReturn:
    _complain(message)
    raise typer.Exit(USAGE_STATUS)


def _say(text: str) -> None:
    """Print lines in which nothing steers the terminal, whatever of them a subject has written."""
    from verifier.records.printable import block

    typer.echo(block(text))


def _complain(message: str) -> None:
    from verifier.records.printable import line

    typer.echo(f"norm-verifier: {line(' '.join(message.split()))}", err=True)


def _write(path: Path, document: Any) -> str:
    """Write JSON to a file; return why it could not be written, or nothing."""
    from verifier.records.files import reason, write_text

    try:
        write_text(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        return f"{path}: {reason(error)}"
    return ""


def _writable(path: Path | None) -> None:
    """Reject a file that cannot be written, before the work and not after it."""
    if path is None:
        return
    if str(path) == "-":
        raise ValueError("-: standard output is for the report that people read; name a file")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: the folder {path.absolute().parent} does not exist")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, not a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ValueError(f"{path}: cannot be written")


def _usable_folder(path: Path) -> None:
    """Reject a place for findings that is a file or lies where nothing can be written."""
    nearest = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(f"{path}: findings cannot be stored there; {nearest} is no writable folder")


def _with_progress(jobs: list[Job], folder: Path, *, budget: str, seed: int, workers: int) -> Report:
    """Audit; findings are saved as each line ends, so that an audit that is cut short loses none."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from verifier.audit.report.columns import widths
    from verifier.audit.report.terminal import PlainTable
    from verifier.audit.run_audit import audit as run
    from verifier.audit.save import save_line
    from verifier.records.printable import line as printable
    from verifier.subjects.load_file import load_subjects

    console = Console(stderr=True)
    if not sys.stdout.isatty():
        found = [s for path in dict.fromkeys(job.path for job in jobs) for s in load_subjects(path)]
        wide = widths([job.subject for job in jobs], [s.claim.variance or "" for s in found])
        table = PlainTable(widths=wide, say=_say)

        def tell(line: Line) -> None:
            save_line(line, folder)
            table.add(line)

        return run(jobs, budget=budget, seed=seed, workers=workers, on_line=tell)
    columns = (
        TextColumn("{task.description:50}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(jobs))

        def advance(line: Line) -> None:
            save_line(line, folder)
            progress.update(
                task, advance=1, description=printable(f"{line.subject} {line.check} {line.dtype}")
            )

        return run(jobs, budget=budget, seed=seed, workers=workers, on_line=advance)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What of a report was printed while it was made."""

    lines: bool = False
    findings: bool = False


def _finish(
    report: Report,
    jobs: list[Job],
    json_file: Path | None,
    folder: Path,
    *,
    told: Told,
    cost_of: list[str] | None = None,
) -> NoReturn:
    """Save the cases of findings, print the report and end with its status."""
    from rich.console import Console

    from verifier.audit.report.json_document import document
    from verifier.audit.report.terminal import interruption, show
    from verifier.audit.run_audit import close_runners
    from verifier.audit.save import save_findings

    save_findings(report, folder)
    wide = None if sys.stdout.isatty() else 200
    if report.interrupted:
        _complain(interruption(report))
    else:
        show(report, Console(width=wide), lines=not told.lines, findings=not told.findings)
    narrow = [d for d in cost_of or () if d in {"float16", "bfloat16"}]
    costs = _show_costs(jobs, narrow) if narrow and not report.interrupted else []
    unwritten = list(dict.fromkeys(f"a case in {f.unwritten}" for f in report.findings if f.unwritten))
    if json_file is not None and (why := _write(json_file, {**document(report), "costs": costs})):
        unwritten.append(why)
    close_runners()
    if unwritten:
        _complain(f"could not be written: {'; '.join(unwritten)}")
    if report.interrupted:
        sys.exit(INTERRUPTED_STATUS)
    raise typer.Exit(USAGE_STATUS if unwritten else report.status)


def _show_costs(jobs: list[Job], dtypes: list[str]) -> list[dict[str, Any]]:
    """Print what narrow dtypes cost, and return the same as JSON data."""
    from verifier.audit.report.json_document import plain
    from verifier.commands.cost_of_dtype import cost, cost_document, cost_lines
    from verifier.subjects.load_file import load_subject

    costs = []
    subjects: dict[str, tuple[Subject, str]] = {}
    for job in jobs:
        if job.backend is not None:
            subjects[job.subject] = (load_subject(job.path, job.subject), job.backend)
    for dtype in dtypes:
        for subject, backend in subjects.values():
            if dtype in subject.dtypes:
                told = cost(subject, dtype, backend)
                for line in cost_lines(told):
                    _say(line)
                costs.append(plain(cost_document(told)))
    return costs
