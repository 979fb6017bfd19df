"""Reads a saved case with what it belongs to; a damaged one is told from a failing one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from strategies.layouts import Layout
from verifier.cases.recipe import assemble
from verifier.ops import op
from verifier.records import witness
from verifier.records.case import Case, CaseError, Document
from verifier.records.printable import said


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A case, the kernel file and the name of its subject, and all else that its document says."""

    case: Case
    kernel: Path
    subject: str
    document: Document


def read_case(path: Path, kernel: Path | None = None) -> Saved:
    """Read a case file whose tensors fit one another and the op; kernel: its file, if it has moved.

    Raises:
        CaseError: the file is no such case, or does not say which subject it belongs to.

    """
    case, document = witness.load(path)
    try:
        where, name = Path(document["subject"]["path"]), str(document["subject"]["name"])
    except (KeyError, TypeError) as error:
        raise CaseError(f"{path}: does not say which subject it belongs to ({said(error)})") from error
    _demand_sound(path, case)
    file = kernel or (where if where.is_absolute() else path.parent / where)
    return Saved(case=case, kernel=file, subject=name, document=document)


MEMORY_BYTES = 1 << 36
"""That a tensor may span in its layout: five times what a row at a stride of 2^30 elements needs."""


def _demand_room(name: str, layout: Layout, tensor: torch.Tensor) -> None:
    steps = zip(tensor.shape, layout.strides(tuple(tensor.shape)), strict=True)
    span = (layout.offset + 1 + sum(max(n - 1, 0) * step for n, step in steps)) * tensor.element_size()
    if span > MEMORY_BYTES:
        raise ValueError(f"the layout of {name} spans {span >> 30} GiB")


def _demand_sound(path: Path, case: Case) -> None:
    """Demand the extents that the op reads off the tensors, and tensors that it can put in rows."""
    try:
        the_op = op(case.op)
        again = assemble(
            the_op, case.dtype, case.tensors, case.scalars, case.layouts, hazard=case.hazard, origin=""
        )
        for name, tensor in case.given.items():
            _demand_room(name, case.layouts.get(name, Layout()), tensor)
            if tensor.dim() == case.input_rank:
                the_op.canonical(again, name, tensor.double().numpy())
    except Exception as error:
        raise CaseError(f"{path}: not a case of {case.op}: {said(error)}") from error
    if (again.rows, again.columns) != (case.rows, case.columns):
        found, said_extents = f"{again.rows} x {again.columns}", f"{case.rows} x {case.columns}"
        raise CaseError(f"{path}: says {said_extents}, but its tensors are {found}")
