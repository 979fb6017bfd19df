"""The command that certifies a kernel at some shapes, or says what could not be shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verifier.audit.shape_text import ranged
from verifier.commands.options import DtypeOption, JsonOption, SeedOption
from verifier.commands.outcome import clear_errors, must_be_writable, say, stop, write_json

if TYPE_CHECKING:
    from verifier.checks.support.recorded_code import Recordings
    from verifier.records.case import Case
    from verifier.records.certificate import Certificate, CodeProof, ReadOrder, ReadSum, Refusal, TheoremBound
    from verifier.records.subject import Subject

UNDECIDED_STATUS = 3
FAILED_STATUS = 4
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", "--shapes", help="ROWSxCOLUMNS of the input; either may be FIRST..LAST. Repeatable."
    ),
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
        from verifier.checks.support.certificate_at_shape import certified_recordings
        from verifier.commands.explain import case_for, subject_of
        from verifier.execution import Runner
        from verifier.records.certificate import OWN_FAILURE, Certificate

        found, documents, refusals = subject_of(kernel, subject), [], list[str]()
        failed = False
        rows_of = RowsAlike(found)
        with Runner("machine") as runner:
            for held in dtype or found.dtypes:
                for rows, columns in shapes:
                    case = case_for(
                        found, held, rows, columns, 0.0, seed, evaluation=evaluation, recorded=True
                    )
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


class RowsAlike:
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
    theorems = ", ".join(bound.theorems)
    yield f"bound of the statistics: {theorems} with sums {bound.depth} deep in {bound.format}"
    declared = bound.declared_depth
    if declared is not None and bound.depth < declared:
        yield f"  shallower than the {declared} that are declared, so that the bound is smaller"
    for row in bound.rows:
        named = {"variance": row.variance, "rstd": row.rstd}
        errors = [f"{name} at most {_above(error)}" for name, error in named.items() if error is not None]
        wider = row.declared_variance
        by = "in any order" if declared is None else "with the declared tree"
        wide = f" (variance {by} {_above(wider)})" if wider is not None and wider != row.variance else ""
        rows = f"some normal rows of kappa {row.kappa:g} and deviation 1 to 2"
        yield f"  relative error on {rows}: {', '.join(errors) or 'no theorem'}{wide}"


def _above(bound: float) -> str:
    """Return a bound in three digits, which are never less than it."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(bound)):.3g}"


def _sum_lines(one: ReadSum) -> Iterator[str]:
    """Say which sum one is, how deep, and in which orders the code makes it."""
    at = f" at {one.line}" if one.line else ""
    of = f", the first {one.of}" if one.of else ""
    used = f"; used by {', '.join(one.results)}" if one.results else ""
    (first, *others) = one.orders
    if not others:
        yield f"sum{at} of {one.text}{of}, {_order(first)}{used}"
        return
    yield f"sum{at} of {one.text}{of}, in {len(one.orders)} orders, a mean of each{used}"
    for order in one.orders:
        columns = [f"columns {held} of {name}" if held else name for name, held in order.columns.items()]
        yield f"  {_order(order)}: {', '.join(columns) or 'no result of the first row'}"


def _order(one: ReadOrder) -> str:
    """Name an order by the first digits of its digest."""
    if one.sha256 is None:
        return "in an order of torch's own"
    return f"order {one.sha256[:12]}{f' of {one.tree}' * bool(one.tree)}"


_MODES = {
    "off": "with products fused as the PTX says",
    "on": "with every product fused that ptxas may fuse",
}


def _proof_lines(proofs: Sequence[CodeProof]) -> Iterator[str]:
    """Yield what is said of the code with products fused and not, once where it is the same."""
    alike = len({str(replace(proof, contraction="", mixed=())) for proof in proofs}) == 1
    for proof in proofs[: 1 if alike else None]:
        modes = [_MODES[one.contraction] for one in (proofs if alike else [proof])]
        yield f"{' and '.join(modes)}: rules of claims {proof.claims or 'none'}"
        yield f"  PTX {', '.join(f'{name} {digest[:12]}' for name, digest in proof.kernels.items())}"
        yield from (f"  {line}" for one in proof.sums for line in _sum_lines(one))
        yield from (f"  {line}" for line in _bound_lines(proof.bound))
        if proof.obligations:
            yield f"  holds: {'; '.join(proof.obligations)}"
        if proof.mixed:
            yield f"  products that ptxas may fuse in one use and round in another: {', '.join(proof.mixed)}"


def _lines(found: Certificate | Refusal) -> Iterator[str]:
    from verifier.records.certificate import Refusal

    if isinstance(found, Refusal):
        yield f"refused: it was not shown that {found.stage}"
        yield f"  {found.why}"
        return
    yield f"CERTIFIED {found.statement}"
    yield f"of {found.call}"
    yield from _proof_lines(found.proofs)
    for result, reached in found.support.items():
        on = "; ".join(f"{argument}: {elements}" for argument, elements in reached.items())
        yield f"an element of {result} depends on no more than {on or 'nothing'}"
    yield f"watched: {', '.join(found.watched)}; theorems: {', '.join(found.theorems)}"
    yield f"bounds: {found.consequence}"
    yield f"assumed: {'; '.join(found.assumptions)}"
    yield f"not covered: {'; '.join(found.not_covered)}"
