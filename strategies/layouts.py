"""Layouts of a tensor in memory as small descriptors, and the strategy that draws them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import torch
from hypothesis import strategies as st

from strategies.placement import Placed, place_strided

Shape: TypeAlias = tuple[int, ...]

ORDERS = ("standard", "transposed", "channels_last", "leading_reversed", "reversed")
EXPANSIONS = ("none", "rows", "columns", "all")


@dataclass(frozen=True, kw_only=True, repr=False)
class Layout:
    """How the elements of a tensor lie in memory; the default is contiguous.

    order: "standard" (last axis innermost), "transposed" (last two axes exchanged), "channels_last" (4 axes),
    "leading_reversed" (all axes but the last in reverse, as batch and sequence after x.transpose(0, 1)),
    "reversed" (all of three or more, the first innermost, as in Fortran).
    column_step: every k-th place along the last axis holds an element, as in x[..., ::k].
    row_step: the same along the last axis but one, as in x[..., ::k, :].
    leading_step: the same along the last axis but two, as in x[..., ::k, :, :]: rows lie in groups, and no
    single stride leads from each row to the next.
    row_padding: unused places behind each run of the innermost axis.
    expanded: axes of stride 0: "rows" (all but the last), "columns" (the last), "all" or "none".
    storage_offset: elements of the storage before the first one.
    misaligned: one element more, so that no vector load is aligned.

    Raises: ValueError for an unknown order or expansion, or a number out of its range.
    """

    order: str = "standard"
    column_step: int = 1
    row_step: int = 1
    leading_step: int = 1
    row_padding: int = 0
    expanded: str = "none"
    storage_offset: int = 0
    misaligned: bool = False

    def __post_init__(self) -> None:
        """Reject what no tensor can have."""
        if self.order not in ORDERS:
            raise ValueError(f"there is no order {self.order!r}; choose from {', '.join(ORDERS)}")
        if self.expanded not in EXPANSIONS:
            raise ValueError(f"nothing expands {self.expanded!r}; choose from {', '.join(EXPANSIONS)}")
        if min(self.column_step, self.row_step, self.leading_step) < 1:
            raise ValueError(
                "column_step, row_step and leading_step are at least 1: torch has no negative strides"
            )
        if min(self.row_padding, self.storage_offset) < 0:
            raise ValueError("row_padding and storage_offset are never negative")

    def __repr__(self) -> str:
        """Print what differs from contiguous, as Python reads it."""
        return f"Layout({', '.join(f'{name}={value!r}' for name, value in self.to_json().items())})"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of what this layout does: ("contiguous",), or ("sliced", "misaligned"), ..."""
        return tuple(kind for kind, shows in _KINDS.items() if shows(self)) or ("contiguous",)

    @property
    def offset(self) -> int:
        """Elements of the storage before the first element."""
        return self.storage_offset + self.misaligned

    def applies_to(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape has the axes that the layout speaks of."""
        if self.order == "channels_last":
            return len(shape) == 4
        if self.order in {"leading_reversed", "reversed"} or self.leading_step > 1:
            return len(shape) >= 3
        speaks_of_rows = self.order == "transposed" or self.row_step > 1 or self.row_padding > 0
        if speaks_of_rows or self.expanded == "rows":
            return len(shape) >= 2
        return len(shape) >= (1 if self.column_step > 1 or self.expanded != "none" else 0)

    def strides(self, shape: Sequence[int]) -> Shape:
        """Return the strides, in elements, that a tensor of this shape gets.

        Raises: ValueError if the shape lacks an axis that the layout speaks of.
        """
        if not self.applies_to(shape):
            raise ValueError(f"{self!r} does not apply to a tensor of shape {tuple(shape)}")
        rank = len(shape)
        steps = {rank - 3: self.leading_step, rank - 2: self.row_step, rank - 1: self.column_step}
        strides = [0] * rank
        run = 1
        for place, axis in enumerate(_innermost_first(self.order, rank)):
            if axis not in self._expanded_axes(rank):
                strides[axis] = run * steps.get(axis, 1)
                run = strides[axis] * max(shape[axis], 1)
            run += self.row_padding if place == 0 else 0
        return tuple(strides)

    def _expanded_axes(self, rank: int) -> range:
        """Return the axes of stride 0."""
        bounds = {"none": (0, 0), "rows": (0, rank - 1), "columns": (rank - 1, rank), "all": (0, rank)}
        return range(*bounds[self.expanded])

    def differs(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape could tell the layout from contiguous."""
        plain = Layout().strides(shape)
        pairs = zip(shape, self.strides(shape), plain, strict=True)
        return self.offset > 0 or (0 not in shape and any(n > 1 and mine != its for n, mine, its in pairs))

    def project(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values that a tensor of this layout can show: along a stride of 0 the first repeats."""
        axes = self._expanded_axes(values.dim())
        first = values[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(values.dim()))]
        return first.expand(values.shape) if values.numel() else values

    def place(self, values: torch.Tensor, *, guard_elements: int = 64, poison: str | int = "nan") -> Placed:
        """Put values into fresh memory in this layout, between red zones.

        values: of any shape and one of the four float dtypes; the tensor shows the bits of `project(values)`.
        guard_elements: elements of each red zone, rounded up to a multiple of 64 for alignment.
        poison: what fills red zones and gaps: one of `placement.POISONS` or a bit pattern.
        Raises: ValueError for a shape, dtype, guard or poison that does not fit.
        """
        strides = self.strides(values.shape)
        return place_strided(values, strides, self.offset, guard_elements=guard_elements, poison=poison)

    def to_json(self) -> dict[str, object]:
        """Return the settings that differ from contiguous, as JSON values."""
        every = ((field.name, field.default) for field in fields(self))
        return {name: getattr(self, name) for name, default in every if getattr(self, name) != default}

    @classmethod
    def from_json(cls, settings: Mapping[str, object]) -> "Layout":
        """Read what `to_json` wrote.

        Raises: ValueError for a setting that does not exist, or has a wrong value.
        """
        unknown = set(settings) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"Layout has no setting {', '.join(sorted(unknown))}")
        return _layout(settings)


def _layout(settings: Mapping[str, object]) -> Layout:
    """Return the layout of settings as JSON has them; it refuses those that it cannot have."""
    made: Callable[..., Layout] = Layout
    return made(**settings)


# What each kind does, in the order in which layouts get stranger.
_KINDS: dict[str, Callable[[Layout], bool]] = {
    "transposed": lambda layout: layout.order in {"transposed", "reversed"},
    "padded_rows": lambda layout: layout.row_padding > 0,
    "sliced": lambda layout: max(layout.column_step, layout.row_step) > 1,
    "storage_offset": lambda layout: layout.storage_offset > 0,
    "misaligned": lambda layout: layout.misaligned,
    "expanded": lambda layout: layout.expanded != "none",
    "channels_last": lambda layout: layout.order == "channels_last",
    "leading_reversed": lambda layout: layout.order in {"leading_reversed", "reversed"},
    "leading_sliced": lambda layout: layout.leading_step > 1,
}
KINDS = ("contiguous", *_KINDS)

# Settings that show each kind, simplest first. Odd and even steps, and paddings and offsets that keep
# 16-byte alignment (16 elements) and that break it (1, 3).
_SETTINGS: dict[str, tuple[dict[str, object], ...]] = {
    "transposed": ({"order": "transposed"},),
    "padded_rows": tuple({"row_padding": padding} for padding in (1, 3, 16)),
    "sliced": tuple({axis: step} for step in (2, 3) for axis in ("column_step", "row_step")),
    "storage_offset": tuple({"storage_offset": offset} for offset in (16, 64)),
    "misaligned": ({"misaligned": True},),
    "expanded": tuple({"expanded": expanded} for expanded in ("rows", "columns", "all")),
    "channels_last": ({"order": "channels_last"},),
    "leading_reversed": ({"order": "leading_reversed"}, {"order": "reversed"}),
    "leading_sliced": tuple({"leading_step": step} for step in (2, 3)),
}


def _innermost_first(order: str, rank: int) -> list[int]:
    """Return the axes as memory holds them, the fastest first."""
    axes = list(range(rank - 1, -1, -1))
    if order == "reversed":
        return axes[::-1]
    if order == "transposed":
        axes[:2] = axes[1::-1]
    if order == "leading_reversed":
        axes[1:] = axes[:0:-1]
    return [1, 3, 2, 0] if order == "channels_last" else axes


def _usable(kind: str, shape: Sequence[int] | None) -> list[dict[str, object]]:
    """List the settings of a kind that a tensor of this shape can have, and could tell from contiguous."""
    every = [(settings, _layout(settings)) for settings in _SETTINGS[kind]]
    if shape is None:
        return [settings for settings, layout in every if layout.applies_to((2, 2))]
    return [settings for settings, layout in every if layout.applies_to(shape) and layout.differs(shape)]


def layouts(
    *, allow: Sequence[str] = KINDS, shape: Sequence[int] | None = None, max_kinds: int = 2
) -> st.SearchStrategy[Layout]:
    """Generate layouts; shrinks towards contiguous, then towards a single kind.

    allow: the kinds to draw from, contiguous being always among them.
    shape: of the tensor; kinds that it cannot have, or that it could not tell from contiguous, are left out.
    With None, any tensor of two or more axes can have them, which excludes what needs three or four.
    max_kinds: how many kinds one layout may combine.
    Raises: ValueError for an unknown kind, or for max_kinds below 1; TypeError for a lone string.
    """
    if isinstance(allow, str):
        raise TypeError(f"allow takes several kinds, such as ({allow!r},), not one string")
    unknown = [kind for kind in allow if kind not in KINDS]
    if unknown:
        raise ValueError(f"there is no layout {unknown[0]!r}; known are {', '.join(KINDS)}")
    if max_kinds < 1:
        raise ValueError(f"max_kinds is {max_kinds}, and a layout has at least one kind")
    usable = [
        (kind, settings)
        for kind in _KINDS
        if kind in allow
        for settings in _usable(kind, shape)
        if {*_layout(settings).kinds} <= {*allow} and len(_layout(settings).kinds) <= max_kinds
    ]
    if not usable:
        return st.just(Layout())
    # Kind and setting are one draw, so that the shrinker can drop a kind by dropping one element; and it is
    # an integer, since unique lists of sampled_from number what is left, which a dropped element shifts.
    part = st.integers(0, len(usable) - 1).map(usable.__getitem__)
    chosen = st.lists(part, max_size=max_kinds, unique_by=_exclusive)
    return chosen.map(
        lambda pairs: _layout({name: value for _, part in pairs for name, value in part.items()})
    )


def _exclusive(choice: tuple[str, dict[str, object]]) -> str:
    """Name what two parts of a layout must not both set: a kind, or the order of the axes."""
    return "order" if "order" in choice[1] else choice[0]


def simpler_layouts(layout: Layout) -> Iterator[Layout]:
    """Yield layouts that differ less from contiguous, the simplest first."""
    settings = layout.to_json()
    if settings:
        yield Layout()
    if len(settings) > 1:
        for name in settings:
            yield _layout({name: settings[name]})
        for dropped in settings:
            yield _layout({name: value for name, value in settings.items() if name != dropped})
    simplest = {name: value for kind in _SETTINGS.values() for name, value in kind[0].items()}
    for name, value in settings.items():
        least = 2 if name in ("column_step", "row_step", "leading_step") else simplest.get(name)
        if isinstance(least, int) and type(value) is int and least < value:
            yield Layout.from_json({**settings, name: least})
