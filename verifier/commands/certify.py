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
    from verifier.records.certificate import Certificate, Refusal, TheoremBound

UNDECIDED_STATUS = 3
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", help="ROWSxCOLUMNS of the input, or ROWSxFIRST..LAST; may be repeated."),
]


def certify(  # noqa: PLR0917
    kernel: Annotated[Path, typer.Argument(help="A kernel file.")],
    shape: ShapeOption = None,
    dtype: DtypeOption = None,
    subject: Annotated[str | None, typer.Option(help="Which subject, if the file has several.")] = None,
    gradients: Annotated[bool, typer.Option(help="Prove the backward pass too.")] = False,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
) -> None:
    """Prove that a kernel computes what it declares, for all inputs of a shape; status 3 where that fails.

    The compiled kernel runs once on the machine, which records the expression of every result. A refusal is
    no finding: what could not be shown may be true.
    """
    with clear_errors():
        from verifier.commands.early_answers import must_be_files, must_be_names

        must_be_writable(json_file)
        must_be_names(dtypes=dtype or ())
        must_be_files([kernel])
        shapes = [one for text in shape or ["2x4096"] for one in ranged(text)]
        from verifier.checks.support.certify import certified
        from verifier.commands.explain import case_for, subject_of
        from verifier.execution import Runner
        from verifier.records.certificate import Certificate

        found, documents, refusals = subject_of(kernel, subject), [], list[str]()
        with Runner("machine") as runner:
            for held in dtype or found.dtypes:
                for rows, columns in shapes:
                    case = case_for(found, held, rows, columns, 0.0, seed)
                    one = certified(found, case, runner=runner, gradients=gradients)
                    named = f"{found.name}  {held}  {rows}x{columns}"
                    say(named)
                    for line in _lines(one):
                        say(f"  {line}")
                    documents.append({**asked(found.name, held, rows, columns), **one.document})
                    if not isinstance(one, Certificate):
                        refusals.append(f"{named}  {one.stage}: {one.why}")
    if len(documents) > 1:
        say(f"{len(documents) - len(refusals)} of {len(documents)} certified")
        for line in refusals:
            say(f"  refused  {line}")
    if json_file is not None and (why := write_json(json_file, {"certificates": documents})):
        stop(f"could not be written: {why}")
    if refusals:
        raise typer.Exit(UNDECIDED_STATUS)


def asked(subject: str, dtype: str, rows: int, columns: int) -> dict[str, object]:
    """Return what a document is about, a refusal too."""
    return {"subject": subject, "dtype": dtype, "rows": rows, "columns": columns}


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
        yield f"products fused {proof.contraction}: rules of claims {proof.claims or 'none'}; sums of {sums}"
        yield f"  PTX {kernels}"
        yield from _bound_lines(proof.bound)
        yield f"  holds: {'; '.join(proof.obligations)}"
    for result, reached in found.support.items():
        on = "; ".join(f"{argument}: {elements}" for argument, elements in reached.items())
        yield f"{result} depends on no more than {on or 'nothing'}"
    yield f"watched: {', '.join(found.watched)}; theorems: {', '.join(found.theorems)}"
    yield f"assumed: {'; '.join(found.assumptions)}"
    yield f"not covered: {'; '.join(found.not_covered)}"
