"""mpmath's functions for specifications that are written with it, one number at a time.

mpmath computes numbers and cannot record. So a specification is called with the same code and other globals:
where it names mpmath, a context of it or a function, it finds what is here.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import reduce
from operator import add, mul, sub, truediv
from types import CellType, FunctionType, MethodType
from typing import Any

import mpmath

from verifier.ops.specification.expression import Expression, SpecificationError
from verifier.ops.specification.joining import joined

_CONTEXTS = (mpmath.mp, mpmath.fp, mpmath.iv)
_SETTINGS = frozenset({"workdps", "workprec", "extradps", "extraprec"})
_ROUNDING = frozenset({"prec", "dps", "exact", "rounding"})


def _log(x: object, base: object = None) -> object:
    natural = x.log() if isinstance(x, Expression) else mpmath.log(x)
    if base is None:
        return natural
    return natural / (base.log() if isinstance(base, Expression) else mpmath.log(base))


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "sqrt": lambda x: x.sqrt(),
    "exp": lambda x: x.exp(),
    "expm1": lambda x: x.exp() - 1,
    "log": _log,
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


def _sum(terms: Iterable[Any], /, start: Any = 0) -> Any:
    """Do what Python's own does; the sum of a whole row is one step."""
    given = list(terms)
    Expression.made += len(given)
    if not given or not all(isinstance(t, Expression) for t in given) or len(given) != given[0].extents[1]:
        return builtins.sum(given, start)
    total = joined(given).sum(-1, keepdim=True)
    return total if isinstance(start, int) and not start else total + start


def _type(value: object, *rest: object) -> object:
    """Do what Python's own does, but for expressions, which would not be taken for numbers."""
    if isinstance(value, Expression):
        raise SpecificationError("a specification cannot branch by types")
    return type(value, *rest)


def _fsum(terms: Iterable[Any], absolute: bool = False, squared: bool = False) -> Any:
    if absolute:
        raise SpecificationError("a sum of absolute values has no exact meaning here")
    return _sum([t * t for t in terms] if squared else terms)


def _fdot(a: Iterable[Any], b: Iterable[object] | None = None) -> Any:
    # Of vectors of different lengths mpmath leaves out the rest, too.
    return _sum(x * y for x, y in (a if b is None else zip(a, b, strict=False)))


_SUMS: dict[str, Callable[..., object]] = {
    "fsum": _fsum,
    "fdot": _fdot,
    "fprod": lambda factors: reduce(mul, factors, 1),
}
FUNCTIONS = (*_FUNCTIONS, *_SUMS)
"""Functions of mpmath that a specification may use."""
_NAMES = {id(value): name for name, value in vars(mpmath).items() if isinstance(value, FunctionType)}


class _Mpmath:
    """Stands for mpmath and its contexts: what is set is forgotten, nothing is rounded here."""

    dps, prec = mpmath.mp.dps, mpmath.mp.prec

    def __init__(self) -> None:
        self.mp = self.fp = self.iv = self

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _SETTINGS:
            return lambda *_, **__: nullcontext()
        if name in _SUMS:
            return _SUMS[name]
        found = getattr(mpmath, name)
        constant = hasattr(found, "_mpf_") and not isinstance(found, type)
        return _on_expressions(name, found) if callable(found) and not constant else found


def _on_expressions(name: str, plain: Callable[..., object]) -> Callable[..., object]:
    """Return a function of mpmath for expressions, which leaves numbers to mpmath."""

    def function(*arguments: object, **options: object) -> object:
        if not any(isinstance(a, Expression) for a in arguments):
            return plain(*arguments, **options)
        rule = _FUNCTIONS.get(name)
        if rule is None or set(options) - _ROUNDING:
            raise SpecificationError(
                f"mpmath's {name} has no exact meaning here; there are: {', '.join(FUNCTIONS)}"
            )
        return rule(*arguments)

    return function


def on_expressions(specification: Callable[..., object]) -> Callable[..., object]:
    """Return the same function, which means this module's functions where it names mpmath's.

    The functions of its module that it calls do as well; those of other modules are left alone.
    """
    if not isinstance(specification, FunctionType):
        return specification
    plain: Any = specification
    if plain.__globals__["__name__"].partition(".")[0] == "mpmath":  # a precision decorates it
        plain = inspect.unwrap(plain)
    made: Any = _Copies(plain).made
    made.__signature__ = inspect.signature(specification)
    return made  # type: ignore[no-any-return]


class _Copies:
    """Copies of the functions of one module, which share their globals.

    Values of the module are told apart by what they are: to hash or compare them could run code of theirs.
    """

    def __init__(self, specification: FunctionType) -> None:
        self.origin = specification.__globals__
        self.stand_in = _Mpmath()
        self.known: dict[int, FunctionType] = {}
        # A function takes its builtins from its globals when it is made.
        own = {**vars(builtins), "__import__": self.imported, "sum": _sum, "type": _type}
        self.globals: dict[str, object] = {"__builtins__": own}
        for name, value in self.origin.items():
            if name != "__builtins__":
                self.globals[name] = self.replaced(value)
        self.made = self.copy(specification)

    def imported(self, name: str, *rest: Any) -> object:
        """Import what is named, but of mpmath what stands for it."""
        return self.stand_in if name == "mpmath" else builtins.__import__(name, *rest)

    def replaced(self, value: object) -> object:
        """Return what stands for a value in the copies."""
        if value is mpmath or any(value is context for context in _CONTEXTS):
            return self.stand_in
        if value is mpmath.mpf:
            return _on_expressions("mpf", value)
        if type(value) is MethodType and any(value.__self__ is context for context in _CONTEXTS):
            return getattr(self.stand_in, value.__func__.__name__)
        if type(value) is not FunctionType:
            return value
        if (name := _NAMES.get(id(value))) is not None:
            return getattr(self.stand_in, name)
        return self.copy(value) if value.__globals__ is self.origin else value

    def copy(self, function: FunctionType) -> FunctionType:
        """Return a function with the same code and the globals of the copies."""
        made = self.known.get(id(function))
        if made is None:
            made = FunctionType(
                function.__code__,
                self.globals,
                function.__name__,
                function.__defaults__ and tuple(self.replaced(value) for value in function.__defaults__),
                function.__closure__ and tuple(CellType() for _ in function.__closure__),
            )
            self.known[id(function)] = made
            defaults = function.__kwdefaults__
            made.__kwdefaults__ = defaults and {name: self.replaced(v) for name, v in defaults.items()}
            for cell, origin in zip(made.__closure__ or (), function.__closure__ or (), strict=True):
                try:
                    cell.cell_contents = self.replaced(origin.cell_contents)
                except ValueError:  # empty
                    continue
        return made
