"""The command that searches as long as a budget lasts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verifier.commands.audit_report import Told, finish
from verifier.commands.early_answers import reject_early
from verifier.commands.kernel_files import usable_files
from verifier.commands.options import (
    BackendOption,
    CheckOption,
    DatabaseOption,
    DtypeOption,
    FreshSeedOption,
    JsonOption,
    OutOption,
    PythonPathOption,
    SchedulerOption,
    SomeWorkersOption,
    SteerOption,
    SubjectOption,
)
from verifier.commands.outcome import clear_errors, must_be_writable, reported
from verifier.commands.own_process import copy_ahead

FUZZING_FOLDER = Path("norm-verifier-fuzz")


def fuzz(  # noqa: PLR0917
    paths: Annotated[list[Path], typer.Argument(help="Kernel files.")],
    dtype: DtypeOption = None,
    check: CheckOption = None,
    subject: SubjectOption = None,
    backend: BackendOption = None,
    budget: Annotated[
        str, typer.Option(help="How long, such as 10m; or smoke, quick, standard, deep.")
    ] = "60s",
    seed: FreshSeedOption = None,
    workers: SomeWorkersOption = "auto",
    out: OutOption = FUZZING_FOLDER,
    scheduler: SchedulerOption = "",
    database: DatabaseOption = "",
    steer: SteerOption = True,
    json_file: JsonOption = None,
    findings: Annotated[Path | None, typer.Option(help="Folder for cases; by default in --out.")] = None,
    pythonpath: PythonPathOption = None,
) -> None:
    """Search for failures as long as the budget lasts; findings are shrunk and saved as they are found.

    The search climbs towards code that nothing reached and errors near their bounds. What reached something
    new stays in the corpus in --out, which later runs replay first; a run that was stopped goes on there.
    """
    with clear_errors(), reported(json_file, seed=seed or 0, budget=budget):
        cases_to = findings or out / "findings"
        reject_early(paths, dtype, check, backend, budget=budget, findings=cases_to)
        must_be_writable(json_file)
        from verifier.commands.fuzz_run import Asked, fuzz_with_progress, workers_asked_for
        from verifier.subjects.load_file import make_importable

        count = workers_asked_for(workers)
        make_importable(folder.resolve() for folder in pythonpath or ())
        copy_ahead("machine", workers=1 if scheduler else count)
        from verifier.audit.run_audit import select, unusable_subjects
        from verifier.commands.screen import Screen

        files, unusable = usable_files(paths)
        jobs = select(
            [file.resolve() for file in files],
            dtypes=dtype or (),
            check_names=check or (),
            backend_name=backend,
            subjects=subject or (),
        )
        asked = Asked(
            budget=budget,
            seed=seed,
            workers=count,
            out=out,
            findings=cases_to,
            scheduler=scheduler,
            database=database,
            steers=steer,
        )
        screen = Screen(2)
        report = fuzz_with_progress(jobs, asked, screen)
        report.unusable = [*unusable, *unusable_subjects(jobs)]
    finish(report, jobs, json_file, cases_to, told=Told(findings=True), screen=screen)
