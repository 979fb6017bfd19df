"""Lines of an audit as JSON and back: what a campaign writes down, so that it can go on where it stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import cast

from verifier.records.case import Case, from_document, to_document
from verifier.records.reach import CompiledForm, Reach, SourcePlace
from verifier.records.verdict import (
    FailureKey,
    Finding,
    Line,
    Measured,
    Outcome,
    ReadTree,
    Variant,
    Verdict,
    Worst,
)

Json = object
_RECORDS = (CompiledForm, FailureKey, Finding, Line, Measured, Outcome, Reach, ReadTree, Variant, Worst)
_BY_NAME: Mapping[str, Callable[..., object]] = {one.__name__: one for one in _RECORDS}
_KIND = "$"
"""The key under which a JSON object says of which kind it is."""
_NOT_KEPT = frozenset({"evidence"})
"""Fields that decide nothing and may hold anything."""


def to_json(value: object) -> Json:
    """Return a record, or what it is made of, as JSON values; NaN and infinities as Python's json has them.

    Raises:
        TypeError: it holds something of another kind.

    """
    match value:
        case Verdict():
            return {_KIND: "Verdict", "is": str(value)}
        case None | bool() | int() | float() | str():
            return value
        case Case():
            return {_KIND: "Case", "is": to_document(value)}
        case Counter() | Mapping():
            kind = "Counter" if isinstance(value, Counter) else "dict"
            return {_KIND: kind, "is": [[to_json(key), to_json(one)] for key, one in value.items()]}
        case SourcePlace():
            return {_KIND: "SourcePlace", "is": list(value)}
        case tuple():
            return {_KIND: "tuple", "is": [to_json(one) for one in value]}
        case list():
            return [to_json(one) for one in value]
        case frozenset():
            return {_KIND: "frozenset", "is": sorted((to_json(one) for one in value), key=repr)}
    if is_dataclass(value) and type(value).__name__ in _BY_NAME:
        kept = (field for field in fields(value) if field.name not in _NOT_KEPT)
        given = {field.name: getattr(value, field.name) for field in kept}
        return {_KIND: type(value).__name__, **{name: to_json(one) for name, one in given.items()}}
    raise TypeError(f"{type(value).__name__} is none of the records that are written down")


def from_json(value: Json) -> object:
    """Return the record that `to_json` wrote.

    Raises:
        ValueError: it is none.

    """
    if isinstance(value, list):
        return [from_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind, told = value.get(_KIND), value.get("is")
    try:
        match kind:
            case "Verdict":
                return Verdict(str(told))
            case "Case":
                return from_document(cast("Mapping[str, object]", told))
            case "Counter":
                return Counter(dict(_pairs(told)))
            case "dict":
                return dict(_pairs(told))
            case "SourcePlace":
                file, function, line = cast("tuple[str, str, int]", told)
                return SourcePlace(file, function, line)
            case "tuple":
                return tuple(_several(told))
            case "frozenset":
                return frozenset(_several(told))
        given = {name: from_json(one) for name, one in value.items() if name != _KIND}
        return _BY_NAME[str(kind)](**given)
    except (LookupError, TypeError) as error:
        raise ValueError(f"not a record: {error}") from error


def _several(told: Json) -> list[object]:
    return [from_json(one) for one in cast("list[object]", told)]


def _pairs(told: Json) -> list[tuple[object, object]]:
    return [(from_json(key), from_json(one)) for key, one in cast("list[list[object]]", told)]
