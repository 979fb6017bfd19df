"""A single mutation of a source text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, order=True)
class Mutation:
    """One place in a file, its text, and what takes its place.

    file: the mutated file. start, end: characters of its text. kind: what kind of mistake it imitates, such
    as "comparison". line: of the place, counted from 1. within: the function that holds it, if one does.
    in_kernel: whether that function is compiled for the device, and nothing else is changed. refusal: where
    the place only decides whether a branch that raises is entered, or lies in it, the line of its condition,
    and the branch's first and last.
    """

    file: Path
    start: int
    end: int
    before: str
    after: str
    kind: str
    line: int
    within: str = ""
    in_kernel: bool = False
    refusal: tuple[int, int, int] | None = None

    def applied(self, text: str) -> str:
        """Return the text with the mutation.

        Raises:
            ValueError: the text has something else at that place.

        """
        if text[self.start : self.end] != self.before:
            raise ValueError(f"{self.file.name} has changed since its mutations were listed")
        return text[: self.start] + self.after + text[self.end :]

    def __str__(self) -> str:
        """Return the place and the change, in one line."""
        change = (
            f"{_one_line(self.before)} -> {_one_line(self.after)}"
            if self.after
            else f"no {_one_line(self.before)}"
        )
        return f"{self.file.name}:{self.line} {self.kind}: {change}"


def _one_line(text: str, width: int = 60) -> str:
    one = " ".join(text.split())
    return one if len(one) <= width else one[: width - 3] + "..."
