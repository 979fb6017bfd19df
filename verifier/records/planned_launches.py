"""What a wrapper would launch for given extents: seen in a dry run, in which no kernel is compiled or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ShapePoint = tuple[int, int, int]
"""Rows, columns and the variant in which an op lays them out."""
AGAIN = " again"
"""How the feature ends that a loop turns more than once, as its head says."""

SEVENFOLD = " sevenfold"
"""How the feature ends that seven tiles go into what a loop goes over, or eight more, and so on."""
VALUE = " has the value "
"""What stands between an argument that is a floating-point number and this, in a feature."""

WRAPPER = "wrapper: "
"""How the feature begins that a statement of the wrapper ran."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The launches of a call at one point.

    features: what tells plans apart, in words, sizes left out: kernels, whether an extent of a grid or an
    integer is 0, 1 or more, how often a tile goes into it (up to 3), constants that are no sizes,
    floating-point numbers; statements of the wrapper that ran.
    compiled: each compilation that the call needs, with the widest tile in it, in elements.
    built: each kernel, and its constants in words, sizes and warps among them.
    forward: the same of the forward pass alone, if there is a backward pass.
    grids: the extents of each kernel's grid along x, y and z, at most, where it is launched several times.
    loops: file's name and line of each loop of the kernels, and whether it may turn more than once, as far
    as its head says.
    refused: what the wrapper raised, if it did; features and compilations are those seen until then.
    fails: whether it did so by no statement of its own that says so.
    """

    features: frozenset[str] = frozenset()
    compiled: frozenset[tuple[str, int]] = frozenset()
    built: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
    forward: Planned | None = None
    grids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    loops: frozenset[tuple[str, int, bool]] = frozenset()
    refused: str = ""
    fails: bool = False

    @property
    def widest(self) -> int:
        """The largest extent of a grid along y or z, 0 without a launch."""
        return max((max(grid[1:]) for grid in self.grids.values()), default=0)


@dataclass(frozen=True, kw_only=True)
class Unlike:
    """What a call in another way does differently from a plain call at the same point, in words.

    more, less: kernels, statements, operations of torch and features of launches that occur in it alone or
    more often, and in the plain call alone or more often. other: what launches and operations are given, or
    give back, and is not the same. ran: what occurs in it. compiled: as in `Planned`.
    """

    more: frozenset[str] = frozenset()
    less: frozenset[str] = frozenset()
    other: frozenset[str] = frozenset()
    ran: frozenset[str] = frozenset()
    compiled: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class WaysRun:
    """What a dry run in several ways shows: by way and point, where both calls could be made.

    files, ended: as in `DryRun`.
    """

    ways: dict[str, dict[ShapePoint, Unlike]]
    files: tuple[str, ...] = ()
    ended: str = ""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The plans of a list of points, as far as they were made.

    files: sources that had a part in them. ended: why the list was not followed to its end, or nothing.
    """

    planned: tuple[Planned, ...]
    files: tuple[str, ...] = ()
    ended: str = ""
