"""Recipes as JSON: a line of text that means the same case on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import cast

from strategies.layouts import Layout
from strategies.values import Values
from verifier.cases.recipe import EPS_NONE, Recipe

_VALUES = ("input", "weight", "bias", "grad_output")
_PLAIN = ("rows", "columns", "variant", "joint", "parameter_dtype", "bias_dtype", "residual_dtype")


def recipe_document(recipe: Recipe) -> dict[str, object]:
    """Return what of a recipe differs from the default, as JSON values."""
    default = Recipe(rows=recipe.rows, columns=recipe.columns)
    found: dict[str, object] = {"rows": recipe.rows, "columns": recipe.columns}
    for field in fields(recipe):
        name, value = field.name, getattr(recipe, field.name)
        if value == getattr(default, name):
            continue
        if name in _VALUES:
            found[name] = _values_document(value)
        elif name == "layouts":
            found[name] = {tensor: layout.to_json() for tensor, layout in recipe.layouts}
        elif name == "further":
            found[name] = {tensor: _values_document(values) for tensor, values in recipe.further}
        elif name == "eps":
            found[name] = recipe.eps.hex() if isinstance(recipe.eps, float) else recipe.eps
        else:
            found[name] = value
    return found


def recipe_of(document: Mapping[str, object]) -> Recipe:
    """Return the recipe that `recipe_document` wrote.

    Raises:
        ValueError: it is none, or says something that no recipe has.

    """
    try:
        unknown = set(document) - {field.name for field in fields(Recipe)}
        if unknown:
            raise ValueError(f"a recipe has no {', '.join(sorted(unknown))}")
        given: dict[str, object] = {name: document[name] for name in _PLAIN if name in document}
        given |= {name: _values(document[name]) for name in _VALUES if name in document}
        if "layouts" in document:
            laid = cast("Mapping[str, Mapping[str, object]]", document["layouts"])
            given["layouts"] = tuple((name, Layout.from_json(layout)) for name, layout in laid.items())
        if "further" in document:
            further = cast("Mapping[str, object]", document["further"])
            given["further"] = tuple((name, _values(values)) for name, values in further.items())
        if "eps" in document:
            eps = document["eps"]
            given["eps"] = eps if eps in {None, EPS_NONE} else float.fromhex(str(eps))
        found = Recipe(**given)  # type: ignore[arg-type]
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"not a recipe: {error}") from error
    if not (_is_extent(found.rows) and _is_extent(found.columns) and _is_extent(found.variant)):
        raise ValueError("not a recipe: rows, columns and variant are whole numbers that are not negative")
    return found


def _is_extent(number: object) -> bool:
    return type(number) is int and number >= 0


def _values_document(values: Values | None) -> object:
    return None if values is None else values.to_json()


def _values(document: object) -> Values | None:
    return None if document is None else Values.from_json(cast("Mapping[str, object]", document))
