"""Attribution: a shadow is the exact value, and the error of the float as one part for each source line.

An instruction's own error, at its actual operands, goes to its line. Errors of operands are passed on by
secant coefficients, so that the parts add up to `computed - exact` exactly and not to first order.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.arithmetics.lifted import LITERALS
from verifier.machine.shadow.arithmetics.selection import chooses_integer, chosen, rounds_to_integer
from verifier.machine.shadow.emitter_kind import EmitterKind

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.findings import Location

NAME = "attribution"

# Where Triton's standard library and CUDA's headers lie: an error made there is the caller's.
_LIBRARY = re.compile(r"/site-packages/triton/|/triton/language/|/nvidia/|/cuda[^/]*/include/")


@dataclass(frozen=True, kw_only=True, order=True)
class CallChain:
    """A line of the user's source and the lines that call it, as (file, line), innermost first.

    `word` says what a place without lines stands for.
    """

    frames: tuple[tuple[str, int], ...] = ()
    word: str = ""


ELSEWHERE = CallChain(word="on no known line")
CONSTANTS = CallChain(word="constants rounded to float32 by the compiler (log2 e)")


class CallChains:
    """Where the operation stands that is computed next: on a line of a kernel, or of a wrapper."""

    def __init__(self, host_file: str) -> None:
        """`host_file`: the user's own file, in which host operations are looked for."""
        self.host_file = host_file
        self.here = ELSEWHERE
        self.known: dict[int, tuple[Location | None, CallChain]] = {}

    def at(self, location: Location | None) -> None:
        """Take the place of an instruction: its inlining chain without the frames of libraries."""
        found = self.known.get(id(location))
        if found is None:
            found = self.known[id(location)] = (location, place_of(location))
        self.here = found[1]

    def on_host(self, name: str) -> None:
        """Take the place of a torch operation: the innermost frame in the user's own file."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.host_file:
            frame = frame.f_back  # type: ignore[assignment]
        self.here = ELSEWHERE if frame is None else CallChain(frames=((self.host_file, frame.f_lineno),))


def place_of(location: Location | None) -> CallChain:
    """Return the frames of a chain that are the user's; the outermost one where none is."""
    if location is None:
        return ELSEWHERE
    chain = (*location.inlined, (location.file, location.line))
    return CallChain(frames=tuple(f for f in chain if not _LIBRARY.search(f[0])) or chain[-1:])


_SHADOW = np.dtype(np.uint8)


class ErringLines(CallChains):
    """Shadows without content; finds the lines that make errors, so that only they get parts."""

    name, emitter = "erring_lines", EmitterKind.LINES
    dtype: np.dtype[np.uint8] = _SHADOW

    def __init__(self, host_file: str) -> None:
        """Start with no line."""
        super().__init__(host_file)
        self.erring: set[CallChain] = set()

    def lift(self, values: Array, kind: str) -> Array:
        """Nothing is kept; a literal that stands for an irrational number errs."""
        if _literal(values, kind) is not None:
            self.erring.add(CONSTANTS)
        return np.zeros(np.shape(values), dtype=np.uint8)

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Note the line if any result differs from the exact result at these operands."""
        if name in ("add", "sub", "fma") and kind == "f32" and rounds_to_integer(floats[-1]):
            return np.zeros(np.shape(result), dtype=np.uint8)
        if name == "cvt" and chooses_integer(kind, result, floats[0]):
            return np.zeros(np.shape(result), dtype=np.uint8)
        if self.here not in self.erring and name not in _EXACT and np.any(own_error(name, result, floats)):
            self.erring.add(self.here)
        return np.zeros(np.shape(result), dtype=np.uint8)


class Attribution(CallChains):
    """Shadows are the exact value (float64) and the parts of the error, one per place and one for the rest.

    `unknown`: operations without a rule, whose results were taken as exact.
    """

    name, emitter = NAME, EmitterKind.LINES

    def __init__(self, host_file: str, places: Sequence[CallChain]) -> None:
        """`places`: those that get a part of their own."""
        super().__init__(host_file)
        self.places = (*(p for p in places if p != ELSEWHERE), ELSEWHERE)
        self.columns = {place: number for number, place in enumerate(self.places)}
        self.dtype = np.dtype([("exact", "f8"), ("parts", "f8", (len(self.places),))])
        self.unknown: set[str] = set()

    def lift(self, values: Array, kind: str) -> Array:
        """Take data as exact; a literal that stands for an irrational number has an error of its own."""
        shadows = np.zeros(np.shape(values), dtype=self.dtype)
        shadows["exact"] = values
        meant = _literal(values, kind)
        if meant is not None:
            column = self.columns.get(CONSTANTS, self.columns[ELSEWHERE])
            shadows["parts"][..., column] = np.asarray(values, dtype=np.float64) - meant
            shadows["exact"] = meant
        return shadows

    def apply(
        self, name: str, kind: str, result: Array, floats: tuple[Array, ...], shadows: tuple[Array, ...]
    ) -> Array:
        """Pass on the parts of the operands and add the instruction's own error to its line."""
        picked = chosen(name, result, floats, shadows)
        if picked is not None:
            return np.asarray(picked)
        if name in ("add", "sub", "fma") and kind == "f32" and rounds_to_integer(floats[-1]):
            return self.lift(result, "integer")
        if name == "cvt" and chooses_integer(kind, result, floats[0]):
            return np.where(result == floats[0], shadows[0], self.lift(result, "integer"))
        if name not in _RULES:
            self.unknown.add(name)
            return self.lift(result, kind)
        given = tuple(np.asarray(f, dtype=np.float64) for f in floats)
        held = tuple(np.asarray(s) for s in shadows)
        exact = tuple(s["exact"] for s in held)
        answer = np.zeros(np.shape(result), dtype=self.dtype)
        with np.errstate(all="ignore"):
            formula, secants = _RULES[name]
            answer["exact"] = formula(*exact)
            parts = answer["parts"]
            for coefficient, shadow in zip(secants(given, exact), held, strict=True):
                if np.any(shadow["parts"]):
                    # An infinite operand (a masked lane of a softmax) hands on no error.
                    factor = np.where(np.isfinite(coefficient), coefficient, 0.0)
                    parts += factor[..., None] * shadow["parts"]
            if name not in _EXACT:
                parts[..., self.columns.get(self.here, self.columns[ELSEWHERE])] += own_error(
                    name, result, floats
                )
        return answer


def own_error(name: str, result: Array, floats: tuple[Array, ...]) -> Array:
    """Return the result minus the exact result at the same operands; 0 where either is not finite."""
    if name not in _RULES:
        return np.zeros(np.shape(result))
    with np.errstate(all="ignore"):
        given = tuple(np.asarray(f, dtype=np.float64) for f in floats)
        error = np.asarray(result, dtype=np.float64) - _RULES[name][0](*given)
        return np.where(np.isfinite(error), error, 0.0)


def _literal(values: Array, kind: str) -> float | None:
    """Return the irrational number that a float32 literal stands for, if it does."""
    if kind != "f32" or np.size(values) != 1:
        return None
    return LITERALS.get(float(np.asarray(values).reshape(-1)[0]))


_EXACT = frozenset({"neg", "abs", "min", "max"})

OperandArrays = tuple["Array", ...]
Coefficients = Callable[[OperandArrays, OperandArrays], tuple["Array", ...]]


def _ratio(rise: Array, run: Array, tangent: Array) -> Array:
    """Return the secant's slope, or the tangent's where the two points meet."""
    return np.where(run == 0, tangent, rise / np.where(run == 0, 1.0, run))


def _product(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    return (f[1] + s[1]) / 2, (f[0] + s[0]) / 2


def _quotient(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    return (1 / f[1] + 1 / s[1]) / 2, -(f[0] + s[0]) / 2 / f[1] / s[1]


def _root(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    return (1 / (np.sqrt(f[0]) + np.sqrt(s[0])),)


def _inverse_root(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    a, b = np.sqrt(f[0]), np.sqrt(s[0])
    return (-1 / (a + b) / a / b,)


def _power_of_two(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    run = f[0] - s[0]
    base = np.exp2(s[0])
    return (base * _ratio(np.expm1(run * math.log(2)), run, np.full_like(run, math.log(2))),)


def _logarithm(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    run = f[0] - s[0]
    return (_ratio(np.log1p(run / s[0]), run, 1 / s[0]) / math.log(2),)


def _natural_logarithm(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    return _logarithm(f, s)[0] * math.log(2), np.full(np.shape(f[1]), math.log(2))


def _shifted_logarithm(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    return *_logarithm(f, s), np.ones(np.shape(f[1]))


def _of(function: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Coefficients:
    return lambda f, s: (_ratio(function(f[0]) - function(s[0]), f[0] - s[0], slope(f[0])),)


def _tangent(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    run = f[0] - s[0]
    return _ratio(np.tanh(f[0]) - np.tanh(s[0]), run, 1 - np.tanh(f[0]) ** 2), np.zeros(np.shape(f[1]))


def _ones(*signs: float) -> Coefficients:
    return lambda f, _: tuple(np.full(np.shape(x), sign) for sign, x in zip(signs, f, strict=True))


def _fused(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    return *_product(f, s), np.ones(np.shape(f[2]))


def _fused_quotient(f: OperandArrays, s: OperandArrays) -> tuple[Array, ...]:
    return *_quotient(f, s), np.ones(np.shape(f[2]))


ErrorRule = tuple[Callable[..., "Array"], Coefficients]
# Per operation the exact result F, and the coefficients c with F(f) - F(s) = sum of c_i (f_i - s_i), f the
# computed and s the exact operands.
_RULES: Mapping[str, ErrorRule] = {
    "add": (np.add, _ones(1, 1)),
    "sub": (np.subtract, _ones(1, -1)),
    "neg": (np.negative, _ones(-1)),
    "cvt": (np.positive, _ones(1)),
    "abs": (np.abs, lambda f, s: (_ratio(np.abs(f[0]) - np.abs(s[0]), f[0] - s[0], np.sign(f[0])),)),
    "mul": (np.multiply, _product),
    "fma": (lambda a, b, c: a * b + c, _fused),
    "mad": (lambda a, b, c: a * b + c, _fused),
    "div": (np.divide, _quotient),
    "divfma": (lambda a, b, c: a / b + c, _fused_quotient),
    "rcp": (np.reciprocal, lambda f, s: (-1 / f[0] / s[0],)),
    "sqrt": (np.sqrt, _root),
    "rsqrt": (lambda a: 1 / np.sqrt(a), _inverse_root),
    "ex2": (np.exp2, _power_of_two),
    "lg2": (np.log2, _logarithm),
    "log": (lambda a, i: np.log(a) + i * math.log(2), _natural_logarithm),
    "log2": (lambda a, i: np.log2(a) + i, _shifted_logarithm),
    "tanh": (np.tanh, _of(np.tanh, lambda x: 1 - np.tanh(x) ** 2)),
    "tanhf": (lambda a, _: np.tanh(a), _tangent),
    "sin": (np.sin, _of(np.sin, np.cos)),
    "cos": (np.cos, _of(np.cos, lambda x: -np.sin(x))),
}


def build(*, places: Sequence[CallChain] = (), host_file: str = "") -> Attribution:
    """Make the arithmetic with a part for each of the places."""
    return Attribution(host_file, places)
