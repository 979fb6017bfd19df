"""The command that certifies a kernel at some shapes, or says what could not be shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifier.audit.shape_text import ranged
from verifier.commands.options import DtypeOption, JsonOption, SeedOption
from verifier.commands.outcome import clear_errors, must_be_writable, say, stop, write_json

if TYPE_CHECKING:
    from verifier.checks.support.recorded_code import Recordings
    from verifier.records.case import Case
    from verifier.records.certificate import Certificate, Refusal, TheoremBound
    from verifier.records.subject import Subject

UNDECIDED_STATUS = 3
FAILED_STATUS = 4
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", help="ROWSxCOLUMNS of the input; either may be FIRST..LAST. Repeatable."),
]


def certify(  # noqa: PLR0917
    kernel: Annotated[Path, typer.Argument(help="A kernel file.")],
    shape: ShapeOption = None,
    dtype: DtypeOption = None,
    subject: Annotated[str | None, typer.Option(help="Which subject, if the file has several.")] = None,
    gradients: Annotated[bool, typer.Option(help="Prove the backward pass too.")] = False,
    evaluation: Annotated[bool, typer.Option(help="Of a batch norm: with running statistics.")] = False,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """Prove that a kernel computes what it declares, for all inputs of a shape; status 3 where that fails.

    Status 4: the verifier itself failed.

    The compiled kernel runs once on the machine, which records the expression of every result. A refusal is
    no finding: what could not be shown may be true.
    """
    with clear_errors():
        from verifier.commands.early_answers import must_be_files, must_be_names

        must_be_writable(json_file)
        must_be_names(dtypes=dtype or ())
        must_be_files([kernel])
        shapes = [one for text in shape or ["2x4096"] for one in ranged(text)]
        from verifier.audit.read_claim import claimed_at
        from verifier.checks.support.certify import certified_recordings
        from verifier.commands.explain import case_for, subject_of
        from verifier.execution import Runner
        from verifier.records.certificate import OWN_FAILURE, Certificate

        found, documents, refusals = subject_of(kernel, subject), [], list[str]()
        failed = False
        rows_of = _RowsAlike(found)
        with Runner("machine") as runner:
            for held in dtype or found.dtypes:
                for rows, columns in shapes:
                    case = case_for(found, held, rows, columns, 0.0, seed, evaluation=evaluation)
                    claimed = claimed_at(found, case, runner, gradients=gradients)
                    one, code = certified_recordings(claimed, case, runner=runner, gradients=gradients)
                    rows_of.add(case, code)
                    named = f"{found.name}  {held}  {rows}x{columns}"
                    say(named)
                    for line in _lines(one):
                        say(f"  {line}")
                    documents.append({**asked(found.name, held, rows, columns), **one.document})
                    if not isinstance(one, Certificate):
                        refusals.append(f"{named}  {one.stage}: {one.why}")
                        failed |= one.stage == OWN_FAILURE
    if len(documents) > 1:
        say(f"{len(documents) - len(refusals)} of {len(documents)} certified")
        for line in refusals:
            say(f"  refused  {line}")
    alike = rows_of.documents()
    for line in map(_alike_line, alike):
        say(line)
    written = {"certificates": documents, "rows_alike": alike}
    if json_file is not None and (why := write_json(json_file, written)):
        stop(f"could not be written: {why}")
    if refusals:
        raise typer.Exit(FAILED_STATUS if failed else UNDECIDED_STATUS)


def asked(subject: str, dtype: str, rows: int, columns: int) -> dict[str, object]:
    """Return what a document is about, a refusal too."""
    return {"subject": subject, "dtype": dtype, "rows": rows, "columns": columns}


LEAST_COUNTS = 3
"""Numbers of rows at which expressions are compared."""


class _RowsAlike:
    """Keeps what was recorded of certified shapes, to compare rows of one length."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._kept: dict[tuple[str, int], list[tuple[Case, Recordings]]] = {}

    def add(self, case: Case, code: Recordings | None) -> None:
        """Keep the recordings of a certified case; of others there are none."""
        if code is not None:
            self._kept.setdefault((case.dtype, case.columns), []).append((case, code))

    def documents(self) -> list[dict[str, object]]:
        """Return what is shown of each dtype and number of columns, at three numbers of rows or more."""
        from verifier.checks.support.rows_alike import rows_alike
        from verifier.ops import op

        found = []
        for (dtype, columns), kept in self._kept.items():
            if len({case.rows for case, _ in kept}) < LEAST_COUNTS:
                continue
            graphs = [
                [(case, code.by_mode[mode].graph) for case, code in kept] for mode in kept[0][1].by_mode
            ]
            by_mode = [rows_alike(one, op(self._subject.op)) for one in graphs]
            why = {name: next((one[name] for one in by_mode if one[name]), "") for name in by_mode[0]}
            found.append(
                {
                    "subject": self._subject.name,
                    "dtype": dtype,
                    "rows": [case.rows for case, _ in kept],
                    "columns": columns,
                    "alike": [name for name, reason in why.items() if not reason],
                    "different": {name: reason for name, reason in why.items() if reason},
                }
            )
        return found


def _alike_line(found: dict[str, object]) -> str:
    """Say of which results every row is the same expression of its own elements."""
    counts = ", ".join(map(str, _list(found["rows"])))
    told = [f"{found['subject']}  {found['dtype']}  {counts} x {found['columns']}"]
    if alike := _list(found["alike"]):
        told.append(
            f"  each row of {', '.join(map(str, alike))} is the same expression of its own elements, in all "
            "rows of all these; of other numbers of rows nothing is shown"
        )
    different = found["different"]
    assert isinstance(different, dict)
    told += [f"  not shown of {name}: {reason}" for name, reason in different.items()]
    return "\n".join(told)


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _bound_lines(bound: TheoremBound | None) -> Iterator[str]:
    """Yield the theorem that bounds the statistics, and what the tree that was read makes of it."""
    if bound is None:
        return
    yield f"  bound: {', '.join(bound.theorems)} with sums {bound.depth} deep in {bound.format}"
    if bound.depth < bound.declared_depth:
        yield f"    shallower than the {bound.declared_depth} that are declared, so that the bound is smaller"
    for row in bound.rows:
        named = {"variance": row.variance, "rstd": row.rstd}
        errors = [f"{name} within {error:.3g}" for name, error in named.items() if error is not None]
        wide = "" if row.declared_variance is None else f" (variance as declared {row.declared_variance:.3g})"
        yield f"    at kappa {row.kappa:g}, relative: {', '.join(errors) or 'no theorem'}{wide}"


def _lines(found: Certificate | Refusal) -> Iterator[str]:
    from verifier.records.certificate import Refusal

    if isinstance(found, Refusal):
        yield f"refused: it was not shown that {found.stage}"
        yield f"  {found.why}"
        return
    yield f"CERTIFIED {found.statement}"
    for proof in found.proofs:
        sums = ", ".join(
            f"{one.terms} terms {one.depth} deep ({one.declared} declared)" for one in proof.sums
        )
        kernels = ", ".join(f"{name} {digest[:12]}" for name, digest in proof.kernels.items())
        summed = f"; sums of {sums}" if sums else ""
        yield f"products fused {proof.contraction}: rules of claims {proof.claims or 'none'}{summed}"
        yield f"  PTX {kernels}"
        yield from _bound_lines(proof.bound)
        yield f"  holds: {'; '.join(proof.obligations)}"
    for result, reached in found.support.items():
        on = "; ".join(f"{argument}: {elements}" for argument, elements in reached.items())
        yield f"{result} depends on no more than {on or 'nothing'}"
    yield f"watched: {', '.join(found.watched)}; theorems: {', '.join(found.theorems)}"
    yield f"assumed: {'; '.join(found.assumptions)}"
    yield f"not covered: {'; '.join(found.not_covered)}"
