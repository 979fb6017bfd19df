"""Whether numbers that copies of a thread store in one place are those that merges in other orders give.

Of parts of rows that are merged in an order of each lane's own no expression is compared: their numbers are.
That proves nothing, but what a lane does otherwise than the others shows on the values of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from verifier.arithmetic.formats import FORMATS, Array
from verifier.arithmetic.graph.constants import FULL_NAMES, decoded
from verifier.arithmetic.graph.graph import Bits, Ids
from verifier.arithmetic.graph.opcodes import opcode
from verifier.execution.shared_nodes import by_rows
from verifier.machine.shadow.graph_nodes import Nodes

_ROUNDINGS = 2.0**12
"""So many times the unit roundoff may lie between them: merges are no deeper, and nothing is lost in most."""


def far_apart(
    nodes: Nodes,
    stored: Sequence[tuple[Ids, Ids]],
    bits: Bits,
    formats: Mapping[str, str],
    largest: float,
) -> bool:
    """Say whether any number that did not stay is no other rounding of the one that did.

    bits: of all nodes. formats: of the elements of arguments. largest: magnitude of an element.
    """
    for lost, kept in stored:
        wanted, place = np.unique(np.stack([lost.ravel(), kept.ravel()]), return_inverse=True)
        numbers, unit = _numbers(nodes, wanted, bits, formats)
        a, b = numbers[place.reshape(2, -1)]
        with np.errstate(all="ignore"):  # what is not finite is none of the hypotheses
            allowed = _ROUNDINGS * unit[place.reshape(2, -1)[0]] * (np.maximum(abs(a), abs(b)) + largest)
            if (np.isfinite(allowed) & (abs(a - b) > allowed)).any():
                return True
    return False


def _numbers(nodes: Nodes, wanted: Ids, bits: Bits, formats: Mapping[str, str]) -> tuple[Array, Array]:
    """Return the numbers of nodes in order, and the unit roundoff of each; NaN where the format is open."""
    numbers, unit = np.full((2, len(wanted)), np.nan)
    for row, own in by_rows(nodes, wanted):
        kind, _, detail = row.name.partition(":")
        held = formats.get(detail, "") if kind == "input" else detail
        if not detail:
            known = opcode(row.name)
            held = "" if known is None else known.result
        if held in FULL_NAMES:
            numbers[own] = decoded(held, bits[wanted[own]].astype(np.uint64))
            unit[own] = FORMATS[FULL_NAMES[held]].u
    return numbers, unit
