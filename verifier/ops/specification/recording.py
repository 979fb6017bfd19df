"""Recording: a user's specification is called with expressions, and what it returns is what it computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from verifier.ops.specification.axes import COLUMNS, FEATURES, LINEAR_WEIGHT, ROWS
from verifier.ops.specification.expression import (
    REFUSED,
    Expression,
    SpecificationError,
    TakenApartError,
    as_written,
)
from verifier.ops.specification.joining import joined
from verifier.records.printable import said


def trace(
    specification: Callable[..., object], arguments: Mapping[str, object], returns: tuple[str, ...]
) -> dict[str, Expression]:
    """Call a specification with those arguments that it takes; return its results by name.

    First with rows as they are, as torch takes them; then, if it takes them apart, as lists of numbers.

    Raises:
        SpecificationError: it returns something else, or uses what has no meaning.

    """
    try:
        found = _recorded(specification, arguments)
        results = found if isinstance(found, tuple | list) else (found,)
    except TakenApartError:
        try:
            results = _by_numbers(specification, arguments, len(returns))
        except SpecificationError as error:
            raise SpecificationError(f"it takes a row apart, so that rows are lists: {error}") from error
    if len(results) != len(returns) or not all(isinstance(e, Expression) for e in results):
        raise SpecificationError(f"a specification returns what its kernel does ({', '.join(returns)})")
    named = dict(zip(returns, results, strict=True))
    last, what = (
        (FEATURES, f"the rows of {LINEAR_WEIGHT}") if LINEAR_WEIGHT in arguments else (COLUMNS, COLUMNS)
    )
    for name, value in named.items():
        if value.rows and value.axes[0] != ROWS:
            raise SpecificationError(f"{name} has {value.axes[0]} where rows belong")
        whole = value.rows and value.columns and value.axes[1] == last
        if name == "output" and not whole:
            like = ", as the input does" if last == COLUMNS else ""
            raise SpecificationError(f"the output does not vary along rows and {what}{like}")
    return named


_PRECISION = 256  # bits of constants that mpmath computes


def _recorded(specification: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """Call a specification; refuse it if it used what has no meaning, whatever it made of the refusal."""
    import mpmath

    taken = inspect.signature(specification).parameters
    refused: list[SpecificationError] = []
    token = REFUSED.set(refused)
    # What mpmath computes are constants; a specification may set its precision, but for itself alone.
    precision = mpmath.workprec(max(_PRECISION, mpmath.mp.prec))
    try:
        with precision:
            found = specification(**{name: arguments[name] for name in taken})
    except (TypeError, LookupError, ArithmeticError) as error:
        found = SpecificationError(said(error))
    except SpecificationError:
        found = None
    finally:
        REFUSED.reset(token)
    apart = [e for e in refused if isinstance(e, TakenApartError)]
    if refused:
        raise (apart or refused)[0]
    return found


def _by_numbers(
    specification: Callable[..., object], arguments: Mapping[str, object], count: int
) -> tuple[Expression, ...]:
    """Call a specification with rows as lists of numbers; return its `count` results."""
    from verifier.ops.specification.mpmath_functions import on_expressions

    if any(isinstance(v, Expression) and v.axes[0] == FEATURES for v in arguments.values()):
        raise SpecificationError(f"no lists stand for {LINEAR_WEIGHT}; write the specification with torch")
    lists = {
        name: [value.column(n) for n in range(value.extents[1])] if isinstance(value, Expression) else value
        for name, value in arguments.items()
    }
    leaf = next(value for value in arguments.values() if isinstance(value, Expression))
    returned = _recorded(on_expressions(specification), lists)
    several = returned if isinstance(returned, tuple) and count > 1 else (returned,)
    return tuple(_result(r, leaf) for r in several)


def demand_few_steps(
    specification: Callable[..., object],
    arguments: Callable[[int], Mapping[str, object]],
    returns: tuple[str, ...],
) -> None:
    """Refuse a specification whose steps grow faster than its columns: ordinary cases have thousands.

    arguments: those that it takes, of so many columns.

    Raises:
        SpecificationError: it does for every number of a row what takes all of the row.

    """
    counts = []
    for columns in (16, 64):
        before = Expression.made
        trace(specification, arguments(columns), returns)
        counts.append(Expression.made - before)
    if counts[1] > 8 * counts[0]:
        raise SpecificationError(
            f"it takes {counts[0]} steps for 16 columns and {counts[1]} for 64: compute once, outside of the "
            "loop over a row, what its numbers share"
        )


def _result(returned: object, leaf: Expression) -> Expression:
    """Return a result; a list of the numbers of a row as one."""
    if not isinstance(returned, tuple | list):
        return leaf.taken(returned)
    if len(returned) != leaf.extents[1]:
        raise SpecificationError("a list is a row: it has a number for every column")
    if not returned:
        return as_written((), leaf.extents)
    row = joined([leaf.taken(e) for e in returned])
    return row if row.columns else as_written([row] * len(returned), leaf.extents)
