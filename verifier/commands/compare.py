"""The command that compares two kernels: what both compute alike, for all inputs of a shape."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifier.audit.shape_text import ranged
from verifier.commands.certify import UNDECIDED_STATUS, ShapeOption
from verifier.commands.options import DtypeOption, JsonOption, SeedOption
from verifier.commands.outcome import clear_errors, must_be_writable, say, stop, write_json

if TYPE_CHECKING:
    from verifier.records.certificate import Refusal
    from verifier.records.comparison import CodeComparison, ComparedResult

DIFFERENT_STATUS = 1


class UpTo(StrEnum):
    """How far results have to be the same."""

    BITS = "bits"
    ZEROS = "zeros"
    FUSING = "fusing"
    FORMULA = "formula"


def compare(  # noqa: PLR0917
    first: Annotated[Path, typer.Argument(help="A kernel file, or the older --json of an audit.")],
    second: Annotated[Path, typer.Argument(help="What it is compared with: a kernel file or a --json.")],
    shape: ShapeOption = None,
    dtype: DtypeOption = None,
    subject: Annotated[
        list[str] | None, typer.Option("--subject", help="Which subject of a file that has several.")
    ] = None,
    gradients: Annotated[bool, typer.Option(help="Compare the backward passes too.")] = False,
    up_to: Annotated[UpTo, typer.Option(help="How far results have to be the same.")] = UpTo.ZEROS,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """Say of each result whether two kernels compute it alike, for all inputs of a shape.

    The same bits; the same where every value is finite, but for the sign of a zero; the same but for products
    fused into sums; the same real function; or the first operations that differ, with the lines of both.

    Of two reports of audits: where the second is worse than the first, and where it is better.

    Exit status: 0 every common result is the same as far as --up-to asks, 1 one has other numbers on the
    inputs that ran, 2 wrong usage, 3 it was not shown, which says nothing against either. Of reports: 1 the
    second is worse, 0 it is not.
    """
    with clear_errors():
        from verifier.commands.compare_reports import are_reports, compare_reports
        from verifier.commands.early_answers import must_be_files, must_be_names

        must_be_writable(json_file)
        must_be_names(dtypes=dtype or ())
        if are_reports(first, second):
            compare_reports(first, second, json_file)
            return
        must_be_files([first, second])
        shapes = [one for text in shape or ["2x4096"] for one in ranged(text)]
        from verifier.checks.support.equivalence import compared_codes
        from verifier.commands.explain import case_for, subject_of
        from verifier.execution import Runner

        names = subject or []
        _must_be_held(names, (first, second))
        one, other = (subject_of(path, _named(path, names)) for path in (first, second))
        if one.op != other.op:
            raise ValueError(f"{one.name} is a {one.op} and {other.name} a {other.op}: nothing to compare")
        dtypes = dtype or [held for held in one.dtypes if held in other.dtypes]
        if not dtypes:
            raise ValueError(f"{one.name} and {other.name} have no dtype in common: nothing to compare")
        documents, status = [], 0
        with Runner("machine") as runner:
            for held in dtypes:
                for rows, columns in shapes:
                    case = case_for(one, held, rows, columns, 0.0, seed, recorded=True)
                    found = compared_codes(one, other, case, runner=runner, gradients=gradients)
                    status = max(status, _status(found, up_to), key=(0, UNDECIDED_STATUS, 1).index)
                    say(f"{one.name} and {other.name}  {held}  {rows}x{columns}")
                    for line in _lines(found):
                        say(f"  {line}")
                    documents.append(found.document)
    if json_file is not None and (why := write_json(json_file, {"comparisons": documents})):
        stop(f"could not be written: {why}")
    if status:
        raise typer.Exit(status)


def _must_be_held(names: list[str], paths: tuple[Path, ...]) -> None:
    """Reject a name of a subject that neither file has."""
    from verifier.audit.request import must_be_known
    from verifier.subjects.load_file import load

    if names:
        held = dict.fromkeys(subject.name for path in paths for subject in load(path).subjects)
        must_be_known("subject", names, tuple(held))


def _named(path: Path, names: list[str]) -> str | None:
    """Return the one of the names that a file has."""
    from verifier.subjects.load_file import load

    held = {subject.name for subject in load(path).subjects} if names else set[str]()
    return next((name for name in names if name in held), None)


def _status(found: CodeComparison | Refusal, up_to: UpTo) -> int:
    """Return the status of one comparison; other bits are none where other operations are allowed."""
    from verifier.records.certificate import Refusal
    from verifier.records.comparison import DEGREES

    if isinstance(found, Refusal):
        return UNDECIDED_STATUS
    order = list(DEGREES)
    open_results = [one for one in found.results if order.index(one.degree) > order.index(up_to.value)]
    strict = up_to in {UpTo.BITS, UpTo.ZEROS}
    if strict and any(one.witness is not None for one in open_results):
        return DIFFERENT_STATUS
    return UNDECIDED_STATUS if open_results or not found.results else 0


def _lines(found: CodeComparison | Refusal) -> Iterator[str]:
    from verifier.records.certificate import Refusal

    if isinstance(found, Refusal):
        yield f"refused: it was not shown that {found.stage}"
        yield f"  {found.why}"
        return
    for one in found.results:
        yield from _lines_of_result(one)
    if found.obligations:
        yield f"holds: {'; '.join(found.obligations)}"
    if found.alone:
        yield f"not compared: {', '.join(found.alone)}, which one of the two gives alone"


def _lines_of_result(one: ComparedResult) -> Iterator[str]:
    from verifier.records.comparison import DEGREES

    yield f"{one.result}: {DEGREES[one.degree]}"
    if one.why:
        yield f"  {one.why}"
    if one.difference is not None:
        yield f"  first difference: {one.difference}"
    if one.witness is not None:
        place = ", ".join(map(str, one.witness.place))
        numbers = f"{one.witness.first!r} and {one.witness.second!r}"
        yield f"  on the inputs that ran: {one.result}[{place}] is {numbers}"
