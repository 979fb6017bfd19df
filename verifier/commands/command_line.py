"""The command `norm-verifier`; everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from verifier.audit.keyword_expression import matcher
from verifier.audit.request import parse_requirements
from verifier.audit.shape_text import asked_shapes
from verifier.commands.audit_report import (
    Told,
    Wanted,
    audit_with_progress,
    baseline_of,
    certify_jobs,
    finish,
    must_be_measured,
)
from verifier.commands.bounds import bounds
from verifier.commands.certify import certify
from verifier.commands.compare import compare
from verifier.commands.early_answers import must_be_libraries, reject_early
from verifier.commands.fuzz import fuzz
from verifier.commands.kernel_files import usable_files
from verifier.commands.mutate import mutate
from verifier.commands.options import (
    AutotuneOption,
    BackendOption,
    BaselineOption,
    BudgetOption,
    CertifyOption,
    CertifyShapeOption,
    CheckOption,
    Coloring,
    ColorOption,
    Configurations,
    CostsOption,
    DtypeOption,
    FindingsOption,
    JsonOption,
    KeywordOption,
    LegendOption,
    LibraryOption,
    MultiprocessorsOption,
    Paths,
    PythonPathOption,
    QuietOption,
    ReleaseOption,
    ReportOption,
    RequireOption,
    SeedOption,
    StopOption,
    SubjectOption,
    TracebackOption,
    VerboseOption,
    WordsOption,
    WorkersOption,
)
from verifier.commands.outcome import (
    INTERRUPTED_STATUS,
    OWN_FAILURE_STATUS,
    USAGE_STATUS,
    clear_errors,
    complain,
    must_be_writable,
    reported,
    say,
    stop,
    write_json,
)
from verifier.commands.own_process import call_own, copy_ahead
from verifier.commands.recheck import recheck

FINDINGS_FOLDER = Path("norm-verifier-findings")

app = typer.Typer(
    name="norm-verifier",
    help="Prove or disprove that a normalization kernel is right, forward and backward.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(*, own_process: bool = False) -> None:
    """Run the command; what the parser rejects is said in one line, our own failure with its traceback.

    own_process: nothing else runs in this process; it may be copied to save the imports of others.
    """
    from verifier.commands.output_pipe import (
        outlive_readers,
        read_paths_as_utf8,
        speak_the_terminals_characters,
    )

    call_own(own_process)
    outlive_readers()
    read_paths_as_utf8()
    speak_the_terminals_characters()
    try:
        status = app(standalone_mode=False)
    except Exception as error:
        # The parser's own exceptions, from whichever package typer takes them: they know how they are shown.
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(getattr(error, "message", str(error)))
            sys.exit(USAGE_STATUS)
        if not hasattr(error, "format_message"):
            if type(error).__name__ == "Abort":
                complain("interrupted")
                sys.exit(INTERRUPTED_STATUS)
            from verifier.records.printable import block

            typer.echo(block(traceback.format_exc()), err=True)
            complain("the verifier itself failed; this says nothing about a kernel")
            sys.exit(OWN_FAILURE_STATUS)
        complain(_in_words(error))
        sys.exit(USAGE_STATUS)
    if status == INTERRUPTED_STATUS:  # by the parser: who ends with this status after a line of its own exits
        complain("interrupted")
    sys.exit(status if isinstance(status, int) else 0)


def _in_words(error: Exception) -> str:
    """Return what the parser rejects; of an option that does not exist, which one may be meant."""
    alike = getattr(error, "possibilities", None)
    name = getattr(error, "option_name", "")
    if alike and name:
        return f"No such option {name!r}. Did you mean {' or '.join(map(repr, alike))}?"
    return str(getattr(error, "format_message", str)())


def _version(wanted: bool) -> None:
    if wanted:
        from verifier import __version__

        typer.echo(f"norm-verifier {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Prove or disprove that a normalization kernel is right, forward and backward."""
    del version  # its callback has answered and ended the command
    if context.invoked_subcommand == "audit":
        from verifier.commands.project_settings import project_settings

        with clear_errors():
            context.default_map = {"audit": project_settings(Path.cwd())}


@app.command()
def audit(  # noqa: PLR0917 (typer reads options off the signature)
    paths: Paths = None,
    library: LibraryOption = None,
    dtype: DtypeOption = None,
    check: CheckOption = None,
    subject: SubjectOption = None,
    backend: BackendOption = None,
    budget: BudgetOption = "quick",
    seed: SeedOption = 0,
    workers: WorkersOption = 0,
    json_file: JsonOption = None,
    findings: FindingsOption = FINDINGS_FOLDER,
    require: RequireOption = None,
    keyword: KeywordOption = "",
    stop_at_finding: StopOption = False,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
    costs: CostsOption = False,
    release: ReleaseOption = False,
    certify: CertifyOption = False,
    certify_shape: CertifyShapeOption = None,
    baseline: BaselineOption = None,
    report_folder: ReportOption = None,
    traceback: TracebackOption = False,
    words: WordsOption = False,
    color: ColorOption = Coloring.AUTO,
    pythonpath: PythonPathOption = None,
    multiprocessors: MultiprocessorsOption = 0,
    autotune: AutotuneOption = Configurations.ALL,
    legend: LegendOption = False,
) -> None:
    """Run every check on every kernel and report the proved bounds, the errors and the findings.

    Without any named, forward_error and gradient run on every dtype of the built-in kernels, other checks on
    one. [tool.norm-verifier] in pyproject.toml gives what is not given here.

    Each line is about one subject and dtype. Findings are printed as they are found.

    Exit status: 0 no unexpected finding, 1 findings, a --require not met or worse than the --baseline,
    2 wrong usage, a file or subject that could not be used or written, 3 nothing was decided, 4 the verifier
    itself failed, 130 interrupted.
    """
    del legend  # its callback has answered and ended the command
    with clear_errors(), reported(json_file, seed=seed, budget=budget):
        wanted = Wanted(
            costs=costs,
            release=release,
            required=parse_requirements(require or ()),
            certify=asked_shapes(certify_shape or (), wanted=certify),
            baseline=baseline_of(baseline, seed=seed, budget=budget),
            folder=report_folder,
        )
        must_be_measured(wanted)
        fits = matcher(keyword) if keyword else None
        paths = [*(paths or ()), *must_be_libraries(library or ())]
        reject_early(paths, dtype, check, backend, budget=budget, findings=findings)
        from verifier.audit.run_audit import default_workers, select, unusable_subjects
        from verifier.commands.screen import Screen
        from verifier.subjects.load_file import make_importable

        make_importable(folder.resolve() for folder in pythonpath or ())
        workers = workers or default_workers()
        copy_ahead("machine", workers=workers)
        files, unusable = usable_files(paths)
        jobs = select(
            files,
            dtypes=dtype or (),
            check_names=check or (),
            backend_name=backend,
            subjects=subject or (),
            fits=fits or (lambda _: True),
            all_dtypes=bool(paths or dtype or subject or fits),
            multiprocessors=multiprocessors,
            autotune=autotune.value,
        )
        jobs = [replace(job, heard=words) for job in jobs]
        screen = Screen(-1 if quiet else verbose, color.value, traceback)
        report = audit_with_progress(
            jobs,
            findings,
            budget=budget,
            seed=seed,
            workers=workers,
            screen=screen,
            stop_at_finding=stop_at_finding,
        )
        report.unusable = [*unusable, *unusable_subjects(jobs)]
        report.required_reach = wanted.required.reach
    told = Told(lines=not screen.is_terminal, findings=True)
    if wanted.shapes:
        certify_jobs(report, jobs, wanted.shapes, workers=workers, screen=screen)
    finish(report, jobs, json_file, findings, told=told, screen=screen, wanted=wanted)


app.command()(fuzz)
app.command()(mutate)


@app.command("list")
def list_subjects(paths: Paths = None) -> None:
    """List kernels, libraries, ops, variance algorithms, checks and backends."""
    with clear_errors():
        reject_early(paths)
        from verifier.commands.listing import listing

        files, unusable = usable_files(paths)
        for line in listing(files):
            say(line)
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
    with clear_errors():
        from verifier.commands.early_answers import must_be_case

        must_be_case(case)
        reject_early(None if kernel is None else [kernel], backend=backend)
        from verifier.audit.replay import replay as run

        text, status = run(case, kernel=kernel, backend_name=backend)
    say(text)
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
    with clear_errors():
        from verifier.commands.early_answers import must_be_case

        must_be_writable(json_file)
        if target.suffix != ".py":
            must_be_case(target)
        reject_early([target] if target.suffix == ".py" else None, [dtype] if dtype else None)
        from verifier.commands.explain import case_for, case_of, document, explain, lines_of, subject_of
        from verifier.execution import Runner

        copy_ahead("machine")
        if target.suffix == ".py":
            found = subject_of(target, subject)
            case = case_for(found, dtype, rows, columns, kappa, seed)
        else:
            found, case = case_of(target, kernel)
        with Runner("machine") as runner:
            explained = explain(found, case, runner=runner)
    for line in lines_of(explained):
        say(line)
    if json_file is not None and (why := write_json(json_file, document(explained))):
        stop(f"could not be written: {why}")


app.command()(certify)
app.command()(compare)
app.command()(recheck)


@app.command()
def describe(
    path: Annotated[Path, typer.Argument(help="A Python file with a kernel's wrapper function.")],
    function: Annotated[str | None, typer.Option(help="Name of the function, if there are several.")] = None,
) -> None:
    """Propose a declaration for a kernel that has none, from its signature and its behaviour."""
    with clear_errors():
        reject_early([path])
        from verifier.commands.describe import describe as run

        text = run(path, function)
    say(text)


app.command()(bounds)
