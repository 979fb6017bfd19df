"""The command that holds a certificate against the kernel as it is now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from verifier.commands.certify import UNDECIDED_STATUS, RowsAlike
from verifier.commands.outcome import clear_errors, say

DIFFERENT_STATUS = 1
ALLOCATED = (64, 128, 256)
"""Alignments that torch's allocator on a CPU gives (c10/core/alignment.h); which of them is chance."""
OTHER_DATA = 7919
"""Another seed than that of `certify`: what is proved of all inputs is proved again on others."""
_PARTS = frozenset({"certificates", "rows_alike"})
_REFUSAL = frozenset({"subject", "dtype", "rows", "columns", "refused"})
_KINDS: Mapping[str, type] = {
    "subject": str, "source": str, "op": str, "dtype": str, "rows": int, "columns": int, "tensors": dict,
    "scalars": dict, "outputs": list, "support": dict, "statement": str, "proofs": list, "version": int,
}  # fmt: skip


def recheck(
    certificate: Annotated[Path, typer.Argument(help="What `certify --json` wrote.")],
    kernel: Annotated[
        Path | None,
        typer.Argument(help="The kernel file of the certificate; NAME.py beside NAME.json if left out."),
    ] = None,
) -> None:
    """Certify a kernel again, on other data, and say what of its certificates does not hold any more.

    Exit status: 0 all hold word for word, 1 one says something else, 2 wrong usage or a damaged file, 3 one
    is refused now.
    """
    with clear_errors():
        from verifier.audit.read_claim import claimed_at
        from verifier.checks.support.certificate_at_shape import certified_recordings
        from verifier.commands.early_answers import must_be_files
        from verifier.commands.explain import case_for, subject_of
        from verifier.execution import Runner
        from verifier.records.certificate import Certificate

        kept, alike = read(certificate)
        kernel = kernel or certificate.with_suffix(".py")
        must_be_files([kernel])
        status, rows_of = 0, dict[str, RowsAlike]()
        with Runner("machine") as runner:
            for one in kept:
                subject = subject_of(kernel, str(one["subject"]))
                rows, columns = (one[name] for name in ("rows", "columns"))
                assert isinstance(rows, int)
                assert isinstance(columns, int)
                scalars = one["scalars"]
                evaluation = isinstance(scalars, dict) and scalars.get("training") is False
                case = case_for(
                    subject,
                    str(one["dtype"]),
                    rows,
                    columns,
                    0.0,
                    OTHER_DATA,
                    evaluation=evaluation,
                    recorded=True,
                )
                backward = "grad_" in str(one["outputs"]) and subject.differentiable
                subject = claimed_at(subject, case, runner, gradients=backward)
                again, code = certified_recordings(subject, case, runner=runner, gradients=backward)
                rows_of.setdefault(subject.name, RowsAlike(subject)).add(case, code)
                say(f"{subject.name}  {case.dtype}  {rows}x{columns}")
                if not isinstance(again, Certificate):
                    say(f"  refused now: it was not shown that {again.stage}\n    {again.why}")
                    status = status or UNDECIDED_STATUS
                    continue
                different, chance = told(one, json.loads(json.dumps(again.document)))
                for line in (*(different or ["holds"]), *chance):
                    say(f"  {line}")
                status = DIFFERENT_STATUS if different else status
        shown = [one for rows in rows_of.values() for one in rows.documents()]
        for claim in alike:
            if claim not in json.loads(json.dumps(shown)):
                named = "  ".join(str(claim.get(name)) for name in ("subject", "dtype", "rows", "columns"))
                say(f"rows_alike  {named}\n  is certified, and not found")
                status = DIFFERENT_STATUS
    if status:
        raise typer.Exit(status)


def read(path: Path) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return the certificates of a file, and what it says of rows that are alike.

    Refusals, which state nothing, are left out.

    Raises:
        ValueError: it is no file of certificates, or of another version.

    """
    from verifier.records.certificate import VERSION

    try:
        held = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is no JSON: {error}") from error
    except _TwiceError as error:
        raise ValueError(f"{path}: says {error} twice, and readers differ in which they take") from error
    documents = held.get("certificates") if isinstance(held, dict) else None
    alike = held.get("rows_alike", []) if isinstance(held, dict) else None
    for several in (documents, alike):
        if not isinstance(several, list) or not all(isinstance(one, dict) for one in several):
            raise ValueError(f"{path}: is no file of certificates")
    if other := sorted(set(held) - _PARTS):
        raise ValueError(f"{path}: has {', '.join(other)}, which no file of certificates has")
    assert isinstance(documents, list)
    assert isinstance(alike, list)
    kept = [one for one in documents if "refused" not in one]
    if any("refused" in one and not _REFUSAL.issuperset(one) for one in documents):
        raise ValueError(f"{path}: a refusal that states something")
    if not kept:
        raise ValueError(f"{path}: holds no certificate")
    for one in kept:
        for name, kind in _KINDS.items():
            if not isinstance(one.get(name), kind) or isinstance(one.get(name), bool):
                why = f"{path}: a certificate has no {name}, or one that is no {kind.__name__}"
                raise ValueError(why)  # noqa: TRY004 (what a user can cause)
        if one["version"] != VERSION:
            raise ValueError(f"{path}: a certificate of version {one['version']}; this is {VERSION}")
    return kept, alike


class _TwiceError(Exception):
    """A name stands twice in one object."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of which each name is given once."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise _TwiceError(repr(name))
        found[name] = value
    return found


class Changed(NamedTuple):
    """What two documents say differently: where, by names and numbers from the outside in, and both."""

    where: tuple[str | int, ...]
    kept: object
    found: object

    def __str__(self) -> str:
        """Return it as a line."""
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.where)
        return f"{''.join(parts).removeprefix('.')}: {self.kept!r} is certified, {self.found!r} is found"


def told(kept: object, found: object) -> tuple[list[str], list[str]]:
    """Return what two documents say differently, and, apart from it, what differs by chance alone."""
    every = list(differences(kept, found))
    by_chance = [f"note: {one}" for one in every if _is_chance(one)]
    return [str(one) for one in every if not _is_chance(one)], by_chance


def _is_chance(one: Changed) -> bool:
    """Return whether a difference is one of alignments, both of which the allocator may give."""
    of_alignment = len(one.where) == 3 and (one.where[0], one.where[2]) == ("tensors", "alignment")
    return of_alignment and all(type(n) is int and n in ALLOCATED for n in (one.kept, one.found))


def differences(kept: object, found: object, where: tuple[str | int, ...] = ()) -> Iterator[Changed]:
    """Yield what two documents say differently, each with its place."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for name in sorted({*kept, *found}):
            yield from differences(kept.get(name), found.get(name), (*where, str(name)))
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for number, (one, other) in enumerate(zip(kept, found, strict=True)):
            yield from differences(one, other, (*where, number))
    elif kept != found or isinstance(kept, bool) is not isinstance(found, bool):  # True == 1
        yield Changed(where=where, kept=kept, found=found)
