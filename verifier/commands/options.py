"""Options that commands share or that need more than a line, with what a shell completes them to."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from verifier.audit.request import ALL_CONFIGURATIONS, BUDGETS, FIRST_CONFIGURATION


class Coloring(StrEnum):
    """When a report is colored."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Configurations(StrEnum):
    """Which configurations of autotuned kernels run."""

    ALL = ALL_CONFIGURATIONS
    FIRST = FIRST_CONFIGURATION


def _checks() -> list[str]:
    from strategies.registry import names_defining

    return list(names_defining("verifier.checks", "NAME"))


def _backends() -> list[str]:
    from strategies.registry import names_defining

    return list(names_defining("verifier.execution.backends", "BACKEND"))


def _libraries() -> list[str]:
    from verifier.subjects.libraries import library_files

    return list(library_files())


def _dtypes() -> list[str]:
    from strategies.formats import FORMATS

    return list(FORMATS)


def _budgets() -> list[str]:
    return list(BUDGETS)


def _legend(wanted: bool) -> None:
    if wanted:
        from verifier.audit.report.subject_lines import legends
        from verifier.commands.outcome import say

        for line in legends():
            say(line)
        raise typer.Exit


Paths = Annotated[
    list[Path] | None,
    typer.Argument(help="Kernel files; without any, the built-in kernels.", show_default=False),
]
DtypeOption = Annotated[
    list[str] | None,
    typer.Option("--dtype", help="Only this dtype (repeatable).", autocompletion=_dtypes),
]
LibraryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--library",
        help="Every norm of this installed library (repeatable); the command `list` names those declared.",
        autocompletion=_libraries,
    ),
]
CheckOption = Annotated[
    list[str] | None,
    typer.Option("--check", help="Only this check (repeatable).", autocompletion=_checks),
]
SubjectOption = Annotated[list[str] | None, typer.Option("--subject", help="Only this subject (repeatable).")]
KeywordOption = Annotated[
    str,
    typer.Option("-k", metavar="EXPR", help="Only subjects that fit, such as 'layer_norm and not backward'."),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend", help="Where to run: cuda, machine, interpreter, eager.", autocompletion=_backends
    ),
]
BudgetOption = Annotated[
    str, typer.Option(help="smoke, quick, standard, deep, or a time such as 300s.", autocompletion=_budgets)
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the search.")]
WorkersOption = Annotated[int, typer.Option("--workers", min=0, help="Worker processes; 0: one per core.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the report to this file.")]
FindingsOption = Annotated[Path, typer.Option("--findings", help="Folder for the cases of findings.")]
RequireOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Status 1 unless: reach=0.95 (so much of functions and loops ran), ulp=1.0,kappa=1e4 (with "
        "--release: no larger error up to there), certificate (each that is asked for is given)."
    ),
]
CertifyOption = Annotated[
    bool,
    typer.Option("--certify", help="Also certify for all inputs: at 4x33, 3x128 and 2x1000, each call."),
]
CertifyShapeOption = Annotated[
    list[str] | None,
    typer.Option("--certify-shape", help="The same, at ROWSxCOLUMNS or ROWSxFIRST..LAST (repeatable)."),
]
CostsOption = Annotated[
    bool, typer.Option("--costs", help="Also say what float16 and bfloat16 cost, where they are audited.")
]
ReleaseOption = Annotated[
    bool,
    typer.Option(
        "--release", help="Also measure what every dtype costs, where, and up to where it is to be trusted."
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", help="Write pages, Markdown, JSON, JUnit XML and SARIF into this folder."),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option("--baseline", help="An earlier --json: status 1 if this audit is worse anywhere."),
]
StopOption = Annotated[bool, typer.Option("-x", "--exitfirst", help="Stop at the first unexpected finding.")]
VerboseOption = Annotated[
    int,
    typer.Option("-v", "--verbose", count=True, show_default=False, help="-v: each check; -vv: notes, too."),
]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but findings.")]
TracebackOption = Annotated[
    bool,
    typer.Option(
        "--traceback", help="Show all frames of an error that a kernel raised, not only the kernel's own."
    ),
]
WordsOption = Annotated[bool, typer.Option("-s", "--show-prints", help="Show what kernels print.")]
ColorOption = Annotated[Coloring, typer.Option("--color", help="Colors; by default on a terminal only.")]
PythonPathOption = Annotated[
    list[Path] | None,
    typer.Option(help="A folder in which kernel files find modules (repeatable).", file_okay=False),
]
MultiprocessorsOption = Annotated[
    int,
    typer.Option(
        "--multiprocessors", min=0, help="Number on the device that the machine plays; 0: the usual 132."
    ),
]
AutotuneOption = Annotated[
    Configurations,
    typer.Option(help="Configurations of autotuned kernels to run: all, or only the first that fits."),
]
LegendOption = Annotated[
    bool, typer.Option("--legend", callback=_legend, is_eager=True, help="Explain the columns and exit.")
]
FreshSeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed", min=0, show_default=False, help="Seed of the search; by default a new one each time."
    ),
]
SomeWorkersOption = Annotated[
    str, typer.Option("--workers", metavar="auto|N", help="Worker processes; auto: one per core.")
]
OutOption = Annotated[
    Path, typer.Option("--out", help="Folder for the corpus, the findings, and what is needed to go on.")
]
SchedulerOption = Annotated[
    str,
    typer.Option("--scheduler", help="Run on the workers of a dask scheduler, such as tcp://host:8786."),
]
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database", help="Share Hypothesis's examples with others: a folder, or redis://host:6379/0."
    ),
]
SteerOption = Annotated[
    bool, typer.Option("--steer/--no-steer", help="Steer the search by what cases reach, and keep a corpus.")
]
