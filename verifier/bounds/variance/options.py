"""What a declaration may say of one variance algorithm alone; each algorithm names one of these records.

A field that `Reduction` has too is read from there, so that shared steps need not know which algorithm
runs; an algorithm with a parameter of its own defines a record in its own file and reads it from
`Reduction.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, get_args

from verifier.arithmetic.formats import FORMATS
from verifier.arithmetic.trees.tree import Tree
from verifier.bounds.variance import Merge, Reduction, algorithm

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Accepts = Callable[[object], bool]


def rule(accepts: Accepts, wanted: str) -> dict[str, object]:
    """Return metadata of a field whose value must satisfy `accepts`; `wanted` says so in an error."""
    return {"accepts": accepts, "wanted": wanted}


def _truth() -> dict[str, object]:
    return rule(lambda v: isinstance(v, bool), "True or False")


def _one_of(words: Iterable[str]) -> dict[str, object]:
    known = tuple(words)
    return rule(lambda v: v in known, f"one of {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class Squares:
    """`squares_tree`: the tree of the sum of squares where it differs from that of the sum."""

    squares_tree: Tree | None = field(
        default=None, metadata=rule(lambda v: v is None or isinstance(v, Tree), "a tree")
    )


@dataclass(frozen=True, kw_only=True)
class Centred(Squares):
    """`mean_cast`: the narrower format that the mean passes through before it is subtracted."""

    mean_cast: str | None = field(default=None, metadata=_one_of(FORMATS))


@dataclass(frozen=True, kw_only=True)
class CorrectedMean(Centred):
    """`corrects_mean`: the row is normalized with mean + mean(x - mean)."""

    corrects_mean: bool = field(default=False, metadata=_truth())


@dataclass(frozen=True, kw_only=True)
class ShiftedBy(Squares):
    """`shift_index`: the element of the row that is subtracted; -1 is the last."""

    shift_index: int = field(default=0, metadata=rule(lambda v: type(v) is int, "the index of an element"))


@dataclass(frozen=True, kw_only=True)
class Merged:
    """`merge`: how two means are merged.

    `per_lane_means`: each lane keeps the statistics that it merged itself.
    """

    merge: Merge = field(default="increment", metadata=_one_of(get_args(Merge)))
    per_lane_means: bool = field(default=False, metadata=_truth())


def option_rules(name: str) -> dict[str, Field[object]]:
    """Return the options of an algorithm by name, as fields of its record."""
    record = _record(name)
    return {} if record is None else {f.name: f for f in fields(record)}


def merges(name: str) -> bool:
    """Return whether an algorithm merges parts, so that its bound follows the order of merges."""
    return _record(name) is Merged


def _record(name: str) -> type[DataclassInstance] | None:
    """Return the class of an algorithm's options; None if it has none."""
    return getattr(algorithm(name), "OPTIONS", None)


def chosen_options(name: str, given: Mapping[str, object]) -> DataclassInstance | None:
    """Return the algorithm's record of options with the given values.

    Raises:
        ValueError: the algorithm does not exist or has no such option, or the value is none of the option's.

    """
    known = option_rules(name)
    for key, value in given.items():
        if key not in known:
            listed = f"its options are: {', '.join(known)}" if known else "it has no options"
            raise ValueError(f"variance algorithm {name!r} has no option {key!r}; {listed}")
        rule = known[key].metadata
        if "accepts" in rule and not rule["accepts"](value):
            raise ValueError(
                f"option {key!r} of variance algorithm {name!r} is {rule['wanted']}, not {value!r}"
            )
    record = _record(name)
    return None if record is None else record(**given)


def reduction(name: str, given: Mapping[str, object], common: Reduction) -> Reduction:
    """Return what is declared of an algorithm: the given options, and what all algorithms have in common.

    Raises:
        ValueError: see `chosen_options`.

    """
    chosen = chosen_options(name, given)
    shared = {key: getattr(chosen, key) for key in given if key in Reduction.__dataclass_fields__}
    made = replace(common, **shared, options=chosen)
    if made.mean_cast and FORMATS[made.mean_cast].holds(made.arithmetic.format):
        return replace(made, mean_cast=None)  # rounds nothing: a contracted product stays several numbers
    return made
