"""Values of a tensor as small seeded descriptors, and the strategy that draws them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
import torch
from hypothesis import strategies as st

from strategies.draws import Draw, numbers
from strategies.formats import Format, Reals, dtype_name, float_format, round_to_format, to_tensor
from strategies.hazards import PLAIN, Hazard, discover, hazard_names

FEW = 2**12
"""Numbers of a tensor beyond which they are made anew each time that they are asked for."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Values:
    """A recipe for the numbers of one tensor: the same bits on every platform, printed in one line.

    hazard: what the numbers aim at, see `hazard_names()`.
    strength: how hard, 0 to 15; each hazard says what it makes of it.
    seed: of all random choices.
    distinct: how many distinct numbers stand in for the normal distribution; None for all.
    scale: power of two that multiplies all numbers.
    row_scale: row i is multiplied by 2^(row_scale * (i mod 8)) as well.
    negative: whether all signs are turned.
    odd_rows: another recipe for the rows 1, 3, 5, ...
    planted: numbers of which row i holds the one at i, beginning again at the end, and both its neighbours in
    the dtype; the other numbers of the row are multiplied by its power of two, but for 2^-2.

    Raises: ValueError for an unknown hazard or a number outside its range.
    """

    hazard: str = PLAIN
    strength: int = 0
    seed: int = 0
    distinct: int | None = None
    scale: int = 0
    row_scale: int = 0
    negative: bool = False
    odd_rows: "Values | None" = None
    planted: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Reject what cannot be filled."""
        if self.hazard != PLAIN and self.hazard not in discover():  # the default looks for no plug-in
            raise ValueError(f"there is no hazard {self.hazard!r}; known are {', '.join(hazard_names())}")
        if not 0 <= self.strength <= 15:
            raise ValueError(f"strength is {self.strength}, and it goes from 0 to 15")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, and a seed is never negative")
        if not all(math.isfinite(number) for number in self.planted):
            raise ValueError(f"planted has {self.planted}, and only finite numbers have neighbours")
        if self.distinct is not None and not 1 <= self.distinct <= 2**32:
            raise ValueError(f"distinct is {self.distinct}; it is None or at least 1")
        if max(abs(self.scale), abs(self.row_scale)) > 4096:
            raise ValueError(
                f"scale {self.scale} or row_scale {self.row_scale} is beyond every exponent range"
            )

    def __repr__(self) -> str:
        """Print what differs from the default, as Python reads it."""
        arguments = [f"{name}={value!r}" for name, value in _settings(self).items()]
        return f"Values({', '.join(arguments)})"

    def fill(
        self, shape: Sequence[int], dtype: str | torch.dtype, *, axes: Sequence[int] = (-1,)
    ) -> torch.Tensor:
        """Make the tensor that this recipe describes, contiguous and on the CPU.

        shape: of any rank; the axes in `axes` together are the columns, all others the rows.
        Numbers are rounded once to the dtype; finite ones stay finite.
        A row does not depend on how many rows there are.
        Raises: ValueError for an unknown dtype, a negative extent or an axis that is not there.
        """
        parts, part = [self], self.odd_rows
        while part is not None:
            parts, part = [*parts, part], part.odd_rows
        target = float_format(dtype_name(dtype))
        # Zeros of either sign are equal, and are not the same where they are planted.
        if math.prod(shape) > FEW or any(one.planted for one in parts):
            made = self._filled(tuple(shape), target, tuple(axes))
        else:
            hazards = tuple(discover()[one.hazard] for one in parts)  # one of that name may be another by now
            made = _filled_lately(self, tuple(shape), target, tuple(axes), hazards)
        return to_tensor(made, target)  # a copy, in whatever format

    def _filled(self, shape: tuple[int, ...], target: Format, axes: tuple[int, ...]) -> Reals:
        """Make the numbers in their shape."""
        if any(extent < 0 for extent in shape):
            raise ValueError(f"shape {shape} has a negative extent")
        order, ordered = _rows_first(shape, axes)
        row_axes = len(order) - (len(axes) if shape else 0)
        rows, columns = (
            int(np.prod(part, dtype=np.int64)) for part in (ordered[:row_axes], ordered[row_axes:])
        )
        matrix = self._matrix(rows, columns, target)
        return matrix.reshape(ordered).transpose(np.argsort(order))

    def _matrix(self, rows: int, columns: int, target: Format) -> Reals:
        """Make (rows, columns) numbers of the format."""
        draw = Draw(
            rows=rows,
            columns=columns,
            format=target,
            strength=self.strength,
            seed=self.seed,
            distinct=self.distinct,
        )
        raw = discover()[self.hazard].generate(draw)
        held = raw
        if self.scale or self.row_scale or self.negative:
            held = self._scaled(raw, target)
        matrix = round_to_format(held, target)
        # the sign of a NaN that arithmetic made differs from processor to processor
        matrix = np.where(np.isnan(matrix), np.nan, matrix)
        if self.planted and matrix.size:
            matrix = self._with_planted(matrix, target)
        if self.odd_rows is not None:
            matrix[1::2] = self.odd_rows._matrix(rows, columns, target)[1::2]
        return matrix

    def _with_planted(self, matrix: Reals, target: Format) -> Reals:
        """Put each row's number among numbers of its size, with its neighbours where there is room."""
        rows, columns = matrix.shape
        numbers = round_to_format(np.resize(np.array(self.planted), rows), target)
        exponents = np.where(numbers == 0, 0, np.frexp(numbers)[1] - 3).astype(np.int32)
        with np.errstate(over="ignore", under="ignore"):
            sized = np.ldexp(matrix, exponents[:, np.newaxis])
        made = round_to_format(np.where(np.isinf(sized) & np.isfinite(matrix), matrix, sized), target)
        index, below, above = np.arange(rows), *_neighbours(numbers, target)
        for number, place in ((above, 2), (below, 1), (numbers, 0)):
            made[index, (index + place * max(1, columns // 3)) % columns] = number
        return made

    def _scaled(self, raw: Reals, target: Format) -> Reals:
        """Multiply by what the recipe says; finite numbers stay finite."""
        rows = np.arange(raw.shape[0], dtype=np.int32)[:, np.newaxis]
        exponents = self.scale + self.row_scale * (rows % 8)
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.ldexp(raw, exponents.astype(np.int32)) * (-1.0 if self.negative else 1.0)
        return np.where(np.isfinite(raw) & np.isinf(scaled), np.copysign(target.maximum, scaled), scaled)

    def to_json(self) -> dict[str, object]:
        """Return the settings that differ from the default, as JSON values."""
        return {
            name: value.to_json() if isinstance(value, Values) else value
            for name, value in _settings(self).items()
        }

    @classmethod
    def from_json(cls, settings: Mapping[str, object]) -> "Values":
        """Read what `to_json` wrote.

        Raises: ValueError for a setting that does not exist, or has a wrong value.
        """
        unknown = set(settings) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"Values has no setting {', '.join(sorted(unknown))}")
        values = dict(settings)
        if "planted" in values:
            values["planted"] = _numbers(values["planted"])
        if isinstance(odd_rows := values.get("odd_rows"), Mapping):
            values["odd_rows"] = cls.from_json(odd_rows)
        made: Callable[..., Values] = cls
        return made(**values)


@lru_cache(maxsize=256)
def _filled_lately(
    recipe: Values,
    shape: tuple[int, ...],
    target: Format,
    axes: tuple[int, ...],
    _hazards: tuple[Hazard, ...],
) -> Reals:
    """Make the numbers of a recipe whose hazards are these; a search asks for most of them several times."""
    return recipe._filled(shape, target, axes)


def _numbers(listed: object) -> tuple[float, ...]:
    """Return the numbers of a list in JSON."""
    if not isinstance(listed, Sequence):
        raise TypeError(f"planted has {listed!r}, and must be a list of numbers")
    return tuple(map(float, listed))


def _neighbours(numbers: Reals, target: Format) -> tuple[Reals, Reals]:
    """Return the numbers of the format below and above; the largest finite one is its own neighbour."""
    exponents = np.where(numbers == 0, target.minimum_exponent, np.frexp(numbers)[1])
    quantum = np.maximum(exponents - target.precision, target.subnormal_exponent)
    # Half a quantum beyond a power of two lies the neighbour that is nearer to zero.
    nearer = np.abs(numbers) == np.ldexp(1.0, exponents - 1)
    normal = exponents - 1 > target.minimum_exponent
    step, inward = np.ldexp(1.0, quantum), np.ldexp(1.0, quantum - (nearer & normal))
    below = numbers - np.where(numbers > 0, inward, step)
    above = numbers + np.where(numbers < 0, inward, step)
    return round_to_format(below, target), round_to_format(above, target)


def _settings(values: Values) -> dict[str, object]:
    """Return the fields that differ from their default."""
    every = ((field.name, field.default) for field in fields(values))
    return {name: getattr(values, name) for name, default in every if getattr(values, name) != default}


def _rows_first(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the order of axes with the columns last, and the shape in that order."""
    rank = len(shape)
    if rank == 0:
        return (), ()
    if any(not -rank <= axis < rank for axis in axes) or len({axis % rank for axis in axes}) != len(axes):
        raise ValueError(f"axes {axes} must be distinct axes of a tensor of shape {shape}")
    columns = [axis % rank for axis in axes]
    order = (*(axis for axis in range(rank) if axis not in columns), *columns)
    return order, tuple(shape[axis] for axis in order)


def values(
    *, hazards: Sequence[str] | None = None, dtype: str | torch.dtype = "float32", mixed_rows: bool = True
) -> st.SearchStrategy[Values]:
    """Generate recipes for values; shrinks towards ordinary numbers, few of them distinct.

    hazards: the names to draw from; None for every hazard whose numbers are finite.
    dtype: how far strength and scale go, float64 having more digits and exponents.
    mixed_rows: whether odd rows may follow another recipe.
    Raises: ValueError for an unknown hazard or dtype, or if there is none; TypeError for a lone string.
    """
    if isinstance(hazards, str):
        raise TypeError(f"hazards takes several names, such as ({hazards!r},), not one string")
    names = tuple(hazard_names(finite_only=True) if hazards is None else hazards)
    if not names:
        raise ValueError("hazards is empty: at least one is needed")
    for name in names:
        Values(hazard=name)
    # the simplest comes first, since that is what Hypothesis shrinks to
    ordered = sorted(names, key=hazard_names().index)
    return _values_once(tuple(ordered), float_format(dtype_name(dtype)), mixed_rows)


@lru_cache(maxsize=256)
def _values_once(names: tuple[str, ...], target: Format, mixed_rows: bool) -> st.SearchStrategy[Values]:
    """Return one strategy for one question: Hypothesis examines each before it draws from it."""
    return _values(st.sampled_from(names), target, mixed_rows)


# Two numbers, or three, make cases that a person can read; most draws take all.
_DISTINCT = st.sampled_from((2, 3, None, None, None, None))
_SCALES = st.sampled_from((0, 0, 0, 1, -1, 4, -4, 8, -8))
_ROW_SCALES = st.sampled_from((0, 0, 0, 0, 1, -1, 4, -4))
_ODD_ROWS = st.sampled_from((False, False, False, True))


@st.composite
def _values(draw: st.DrawFn, names: st.SearchStrategy[str], target: Format, mixed_rows: bool) -> Values:
    distinct = draw(_DISTINCT)
    recipe = Values(
        hazard=draw(names),
        strength=draw(st.integers(0, max(7, min(target.decimal_digits, 15)))),
        distinct=distinct,
        seed=draw(numbers(2**16 - 1)),
        scale=draw(_SCALES),
        row_scale=draw(_ROW_SCALES),
        negative=draw(st.booleans()),
    )
    if mixed_rows and draw(_ODD_ROWS):
        other = Values(hazard=draw(names), strength=recipe.strength, seed=recipe.seed)
        return replace(recipe, odd_rows=other)
    return recipe
