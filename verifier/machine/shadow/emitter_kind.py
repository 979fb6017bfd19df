"""Which lines of emitted code move the shadows of a launch."""

from __future__ import annotations

from enum import StrEnum


class EmitterKind(StrEnum):
    """A kind of shadow emitter; each arithmetic names the one that its shadows need."""

    SLOTS = "slots"
    """Each float has a shadow, with a tag wherever the float's bits may change unseen."""
    LINES = "lines"
    """The same, and the arithmetic hears the source line of each operation (`at`)."""
    TAINT = "taint"
    """Each half-word has a set of sources, which any operation on bits hands on."""
    FLAGS = "flags"
    """Each register has a flag that says whether it was never written; no arithmetic."""
    GRAPH = "graph"
    """Each float has the node that computes it; whatever else reads data is unknown."""
