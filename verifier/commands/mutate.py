"""The command that plants mistakes in a kernel and counts which of them an audit finds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verifier.audit.request import BUDGETS, did_you_mean
from verifier.commands.early_answers import reject_early
from verifier.commands.kernel_files import usable_files
from verifier.commands.options import CheckOption, DtypeOption, JsonOption, SeedOption, WorkersOption
from verifier.commands.outcome import clear_errors, must_be_writable, say, stop, write_json
from verifier.commands.own_process import copy_ahead


def mutate(  # noqa: PLR0917
    path: Annotated[Path, typer.Argument(help="A kernel file.")],
    check: CheckOption = None,
    dtype: DtypeOption = None,
    budget: Annotated[
        str, typer.Option(help="Cases for each line: smoke, quick, standard or deep.")
    ] = "quick",
    sample: Annotated[
        int | None, typer.Option(min=1, help="How many mutants, chosen by the seed; by default all.")
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
    with clear_errors():
        if budget not in BUDGETS:
            named = f"{', '.join(BUDGETS)}{did_you_mean(budget, BUDGETS)}"
            raise typer.BadParameter(f"{budget!r} is none of {named}", param_hint="--budget")
        must_be_writable(json_file)
        reject_early([path], dtype, check)
        from verifier.audit.mutation.kills import Question
        from verifier.audit.mutation.mutants import document, fate_in_a_line, lines_of, run_mutants, status_of
        from verifier.audit.run_audit import default_workers, select

        workers = workers or default_workers()
        copy_ahead(workers=max(workers, 2))  # mutants have processes of their own, however few
        files, _ = usable_files([path])
        select(files, dtypes=dtype or (), check_names=check or ())
        question = Question(
            cases=BUDGETS[budget],
            seed=seed,
            checks=tuple(check or ()),
            every=matrix,
            dtypes=tuple(dtype or ()),
        )
        found = run_mutants(
            files[0].resolve(),
            question,
            workers=workers,
            sample=sample,
            on_fate=lambda one, of: typer.echo(f"{fate_in_a_line(one)} (of {of})", err=True),
        )
    for line in lines_of(found):
        say(line)
    if json_file is not None and (why := write_json(json_file, document(found))):
        stop(f"could not be written: {why}")
    raise typer.Exit(status_of(found))
