"""mpmath's functions for specifications that are written with it, one number at a time.

mpmath computes numbers and cannot record. So a specification is called with the same code and other globals:
where it names mpmath, a context of it or a function, it finds what is here.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import reduce
from operator import add, mul, sub, truediv
from types import CellType, FunctionType
from typing import Any

import mpmath

from verifier.specification.expression import Expression, SpecificationError, joined

_CONTEXTS = (mpmath.mp, mpmath.fp, mpmath.iv)


class _Sums:
    """Sums of numbers; that of a whole row is one step, however often it is written."""

    def __init__(self) -> None:
        self.known: list[tuple[list[Expression], Expression]] = []

    def sum(self, terms: Iterable[Any], /, start: Any = 0) -> Any:
        """Do what Python's own does."""
        given = list(terms)
        whole = given and all(isinstance(t, Expression) for t in given)
        if not whole or len(given) != given[0].extents[1]:
            return builtins.sum(given, start)
        total = next((known for terms, known in self.known if terms == given), None)
        if total is None:
            total = joined(given).sum(-1, keepdim=True)
            self.known.append((given, total))
        return total if isinstance(start, int) and not start else total + start

    def fsum(self, terms: Iterable[Any], absolute: bool = False, squared: bool = False) -> Any:
        """Do what mpmath's does."""
        if absolute:
            raise SpecificationError("a sum of absolute values has no exact meaning here")
        return self.sum([t * t for t in terms] if squared else terms)

    def fdot(self, a: Iterable[Any], b: Iterable[Any] | None = None) -> Any:
        """Do what mpmath's does."""
        return self.sum(x * y for x, y in (a if b is None else zip(a, b, strict=True)))

    def fprod(self, factors: Iterable[Any]) -> Any:
        """Do what mpmath's does."""
        return reduce(mul, factors, 1)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": lambda x: x.sqrt(),
    "exp": lambda x: x.exp(),
    "expm1": lambda x: x.exp() - 1,
    "log": lambda x: x.log(),
    "ln": lambda x: x.log(),
    "log1p": lambda x: (1 + x).log(),
    "tanh": lambda x: x.tanh(),
    "power": lambda x, exponent: x**exponent,
    "mpf": lambda x: x,
    "mpmathify": lambda x: x,
    "convert": lambda x: x,
    "fadd": add,
    "fsub": sub,
    "fmul": mul,
    "fdiv": truediv,
    "fneg": lambda x: -x,
}
_SUMS = ("fsum", "fdot", "fprod")
FUNCTIONS = (*_FUNCTIONS, *_SUMS)
"""Functions of mpmath that a specification may use."""
_NAMES = {v: n for n, v in vars(mpmath).items() if callable(v) and not isinstance(v, type)}
_PRECISION = frozenset({"workdps", "workprec", "extradps", "extraprec"})


class _Mpmath:
    """Stands for mpmath and its contexts: what is set is forgotten, nothing is rounded here."""

    dps, prec = mpmath.mp.dps, mpmath.mp.prec

    def __init__(self) -> None:
        self.mp = self.fp = self.iv = self
        self.sums = _Sums()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _PRECISION:
            return lambda *_, **__: nullcontext()
        if name in _SUMS:
            return getattr(self.sums, name)
        found = getattr(mpmath, name)
        return _on_expressions(name, found) if callable(found) else found


def _on_expressions(name: str, plain: Any) -> Any:
    """Return a function of mpmath for expressions, which leaves numbers to mpmath."""

    def function(*arguments: Any, **options: Any) -> Any:
        if not any(isinstance(a, Expression) for a in arguments):
            return plain(*arguments, **options)
        rule = _FUNCTIONS.get(name)
        if rule is None or options:
            raise SpecificationError(
                f"mpmath's {name} has no exact meaning here; there are: {', '.join(FUNCTIONS)}"
            )
        return rule(*arguments)

    return function


def on_expressions(specification: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, which means this module's functions where it names mpmath's.

    The functions of its module that it calls do as well; those of other modules are left alone.
    """
    return specification if not isinstance(specification, FunctionType) else _Copies(specification).made


class _Copies:
    """Copies of the functions of one module, which share their globals."""

    def __init__(self, specification: FunctionType) -> None:
        self.origin = specification.__globals__
        self.stand_in = _Mpmath()
        self.known: dict[int, FunctionType] = {}
        # A function takes its builtins from its globals when it is made.
        self.globals: dict[str, Any] = {
            "__builtins__": {**vars(builtins), "__import__": self.imported, "sum": self.stand_in.sums.sum}
        }
        for name, value in self.origin.items():
            if name != "__builtins__":
                self.globals[name] = self.replaced(value)
        self.made = self.copy(specification)

    def imported(self, name: str, *rest: Any) -> Any:
        """Import what is named, but of mpmath what stands for it."""
        return self.stand_in if name == "mpmath" else builtins.__import__(name, *rest)

    def replaced(self, value: Any) -> Any:
        """Return what stands for a global in the copies."""
        if value is mpmath or any(value is context for context in _CONTEXTS):
            return self.stand_in
        if value is mpmath.mpf:
            return _on_expressions("mpf", value)
        if isinstance(value, FunctionType) and value.__globals__ is self.origin:
            return self.copy(value)
        try:
            name = _NAMES.get(value)
        except TypeError:  # not hashable
            return value
        return value if name is None else getattr(self.stand_in, name)

    def copy(self, function: FunctionType) -> FunctionType:
        """Return a function with the same code and the globals of the copies."""
        made = self.known.get(id(function))
        if made is None:
            made = FunctionType(
                function.__code__,
                self.globals,
                function.__name__,
                function.__defaults__,
                function.__closure__ and tuple(CellType() for _ in function.__closure__),
            )
            self.known[id(function)] = made
            made.__kwdefaults__ = function.__kwdefaults__
            for cell, origin in zip(made.__closure__ or (), function.__closure__ or (), strict=True):
                try:
                    cell.cell_contents = self.replaced(origin.cell_contents)
                except ValueError:  # empty
                    continue
        return made
