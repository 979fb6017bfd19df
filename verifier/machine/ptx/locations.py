"""From `.loc` directives to the line of the user's own source."""

from __future__ import annotations

import re

from verifier.machine.execute.findings import Location

_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")
_COMMENT_FRAME = re.compile(r"@\[\s*([^\s\]]+):(\d+):(\d+)")


class LocationTracker:
    """Follows `.loc` through a function and answers with the outermost frame of the inlining chain.

    Triton 3.9 writes the chain frame by frame (`inlined_at`), Triton 3.6 in a comment;
    a line number of 0 means that the line before still holds.
    """

    def __init__(self, files: dict[int, str]) -> None:
        """Take the file table of the module."""
        self.files = files
        self.parents: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self.current: Location | None = None

    def advance(self, text: str) -> None:
        """Read the rest of a `.loc` line."""
        numbers = re.match(r"(\d+)\s+(\d+)\s+(\d+)", text)
        if not numbers or int(numbers[2]) == 0:
            return
        position = (int(numbers[1]), int(numbers[2]), int(numbers[3]))
        inlined = _INLINED.search(text)
        frames = _COMMENT_FRAME.findall(text)
        if inlined:
            self.parents[position] = (int(inlined[1]), int(inlined[2]), int(inlined[3]))
            self.current = self.chase(position)
        elif frames:
            self.current = self.from_comment(position, frames)
        else:
            self.parents.pop(position, None)
            self.current = Location(file=self.file(position[0]), line=position[1], column=position[2])

    def chase(self, position: tuple[int, int, int]) -> Location:
        """Follow `inlined_at` to the frame that nobody inlined."""
        chain: list[tuple[str, int]] = []
        seen = {position}
        while position in self.parents:
            chain.append((self.file(position[0]), position[1]))
            position = self.parents[position]
            if position in seen:
                break
            seen.add(position)
        return Location(
            file=self.file(position[0]), line=position[1], column=position[2], inlined=tuple(chain)
        )

    def from_comment(self, position: tuple[int, int, int], frames: list[tuple[str, str, str]]) -> Location:
        """Read the chain `a.py:1:2 @[ b.py:3:4 ]`, outermost frame last, completing short file names."""
        chain = [(self.file(position[0]), position[1])]
        chain += [(self.complete(name), int(line)) for name, line, _ in frames]
        return Location(
            file=chain[-1][0], line=chain[-1][1], column=int(frames[-1][2]), inlined=tuple(chain[:-1])
        )

    def file(self, number: int) -> str:
        """Path of a numbered file."""
        return self.files.get(number, f"<file {number}>")

    def complete(self, name: str) -> str:
        """Full path of a file that a comment names without its folder."""
        for path in self.files.values():
            if path == name or path.endswith("/" + name):
                return path
        return name
