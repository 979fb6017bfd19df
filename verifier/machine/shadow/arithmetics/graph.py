"""Graph: the shadow of a float is the node of the expression that computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.emitter_kind import EmitterKind

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array

NAME = "graph"


@dataclass(frozen=True, kw_only=True)
class GraphOfNodes:
    """Shadows are codes of nodes (see `node_codes`); nodes are made there, and what is made here is lost."""

    name: str = NAME
    emitter: EmitterKind = EmitterKind.GRAPH
    dtype: type[np.int64] = np.int64

    def lift(self, values: Array, kind: str) -> Array:
        """Nothing is known of a float that has no code."""
        return np.zeros(np.shape(values), dtype=np.int64)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Nothing is known of an operation that no node was made of."""
        return np.zeros(np.shape(result), dtype=np.int64)


def build() -> GraphOfNodes:
    """Make the arithmetic."""
    return GraphOfNodes()
