"""Runs a torch subject with a shadow for every float: its value without rounding and a bound on its error.

Every torch operation is done twice: as torch does it, and in float64 on what it read. The difference is its
own error, measured and counted as one rounding at least; the errors of what it read are propagated.
An operation that errs by more than its documentation allows, or that has no rule here, leaves no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from verifier.arithmetic.formats import FORMATS, Array, Format
from verifier.checks.support.running_bound_run import ShadowedRun
from verifier.execution.backend import Backend
from verifier.execution.shadow_run import execute_with_shadows
from verifier.machine.arithmetic.numerics import Array as Shadows
from verifier.machine.shadow.arithmetics.ball import BallArithmetic
from verifier.machine.shadow.emitter_kind import EmitterKind
from verifier.machine.shadow.host_operations import HostSlots, as_floats
from verifier.machine.shadow.slots import Slots
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject

_SHADOW = np.dtype([("value", "f8"), ("bound", "f8")])
_FLOAT64 = 2.0**-48
"""Relative error of a float64 evaluation or bound below: each has fewer than 32 roundings of 2^-53."""
_BASIC, _FUNCTION = 2.0, 8.0
"""Units of roundoff that torch's operations may err by: basic ones and roots are rounded correctly (1; a
narrow format is reached through float32), SLEEF documents an ulp for its functions (2), of which torch makes
others in up to three steps. What errs more is another function than is meant here."""
_Operands = tuple[Shadows, ...]


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """One operation: its value, the most that errors of its operands move it, and its allowance in u."""

    value: Callable[..., Array]
    moved: Callable[..., Array]
    allowed: float = _BASIC
    exact: bool = False


def _added(_a: Array, _b: Array, ea: Array, eb: Array) -> Array:
    return ea + eb


def _product(a: Array, b: Array, ea: Array, eb: Array) -> Array:
    return np.abs(a) * eb + np.abs(b) * ea + ea * eb


def _slope(most: float) -> Callable[..., Array]:
    """Return the rule of a function whose slope is nowhere above this."""

    def moved(_a: Array, ea: Array) -> Array:
        return most * ea

    return moved


def _logarithm(a: Array, ea: Array) -> Array:
    return np.where(ea == 0, 0.0, -np.log1p(-np.minimum(ea / a, 1.0)))


def _quotient(a: Array, b: Array, ea: Array, eb: Array) -> Array:
    reach = (ea + np.abs(a / b) * eb) / (np.abs(b) - eb)
    return np.where((ea == 0) & (eb == 0), 0.0, np.where(np.abs(b) > eb, reach, np.inf))


def _root(a: Array, ea: Array) -> Array:
    low = np.maximum(a - ea, 0.0)
    return np.where(ea == 0, 0.0, ea / (np.sqrt(a) + np.sqrt(low)))


def _reciprocal_root(a: Array, ea: Array) -> Array:
    root, low = np.sqrt(a), np.sqrt(np.maximum(a - ea, 0.0))
    return np.where(ea == 0, 0.0, ea / (root * low * (root + low)))


def _sigmoid(a: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-a))


_RULES = {
    "add": _Rule(value=np.add, moved=_added),
    "sub": _Rule(value=np.subtract, moved=_added),
    "mul": _Rule(value=np.multiply, moved=_product),
    "div": _Rule(value=np.divide, moved=_quotient),
    "neg": _Rule(value=np.negative, moved=_slope(1.0), exact=True),
    "abs": _Rule(value=np.abs, moved=_slope(1.0), exact=True),
    "cvt": _Rule(value=np.positive, moved=_slope(1.0), exact=True),
    "sqrt": _Rule(value=np.sqrt, moved=_root),
    "rsqrt": _Rule(value=lambda a: 1.0 / np.sqrt(a), moved=_reciprocal_root, allowed=2 * _BASIC),
    "reciprocal": _Rule(value=np.reciprocal, moved=lambda a, ea: _quotient(np.ones(()), a, 0.0 * ea, ea)),
    "exp": _Rule(value=np.exp, moved=lambda a, ea: np.exp(a) * np.expm1(ea), allowed=_FUNCTION),
    "log": _Rule(value=np.log, moved=_logarithm, allowed=_FUNCTION),
    "tanh": _Rule(value=np.tanh, moved=_slope(1.0), allowed=_FUNCTION),
    "sigmoid": _Rule(value=_sigmoid, moved=_slope(0.25), allowed=_FUNCTION),
    "silu": _Rule(value=lambda a: a * _sigmoid(a), moved=_slope(1.1), allowed=2 * _FUNCTION),
}
"""A conversion errs by what is measured: it is exact where the other format holds the number."""
_BINARY = frozenset({"add", "sub", "mul", "div"})
_UNARY = frozenset(_RULES) - _BINARY - {"cvt"}
_POWERS = {
    2.0: ("mul",),
    3.0: ("mul", "mul"),
    0.5: ("sqrt",),
    -0.5: ("rsqrt",),
    -1.0: ("reciprocal",),
    1.0: (),
}


@dataclass(kw_only=True)
class Followed:
    """Shadows are (value without rounding, bound on the error of the float), float64."""

    name: str = "followed"
    emitter: EmitterKind = EmitterKind.SLOTS
    dtype: np.dtype[np.void] = field(default_factory=lambda: _SHADOW)
    ball: BallArithmetic = field(default_factory=lambda: BallArithmetic(given=True))

    def lift(self, values: Array, kind: str) -> Shadows:
        """Take a single number for a literal, which means itself or its float32; arrays have lost shadows."""
        plain = np.asarray(values, dtype=np.float64)
        found = made(plain, self.ball.lift(values, kind))
        if plain.size == 1:
            with np.errstate(over="ignore"):
                found["bound"] += np.abs(plain.astype(np.float32).astype(np.float64) - plain)
        return found

    def lift_written(self, values: Array, kind: str) -> Shadows:
        """Take 0 and infinity for what they are; any other number in memory has lost its shadow."""
        return made(np.asarray(values, dtype=np.float64), self.ball.lift_written(values, kind))

    def apply(self, name: str, _kind: str, result: Array, floats: _Operands, shadows: _Operands) -> Shadows:
        """Do an operation on values, and bound the error of its result."""
        rule = _RULES[name]
        with np.errstate(all="ignore"):
            ideal = rule.value(*floats)
            moved = rule.moved(*floats, *(s["bound"] for s in shadows))
            own = np.abs(result - ideal) + _FLOAT64 * np.abs(ideal)
            return made(rule.value(*(s["value"] for s in shadows)), (moved + own) * (1.0 + _FLOAT64))


def made(value: Array, bound: Array | float) -> Shadows:
    """Return shadows; a bound that is no number is none."""
    found = np.empty(np.broadcast_shapes(np.shape(value), np.shape(bound)), dtype=_SHADOW)
    found["value"], found["bound"] = value, np.where(np.isnan(bound), np.inf, bound)
    return found


class TorchSlots(HostSlots):  # type: ignore[no-untyped-call]
    """Follows the torch operations that norms are written with, backward too."""

    def value(
        self, name: str, args: Any, kwargs: Mapping[str, Any], before: list[Any], result: torch.Tensor
    ) -> Shadows | None:
        """Shadows of the result, or None where there is no rule."""
        plain = kwargs.get("alpha", 1) == 1 and "rounding_mode" not in kwargs
        if name == "rsub" and plain and len(args) == 2:
            return self.apply("sub", result, args[1::-1], before[1::-1])
        if name in _UNARY and len(args) == 1:
            return self.apply(name, result, args, before)
        if name == "pow" and len(args) == 2 and isinstance(args[1], int | float) and args[1] in _POWERS:
            return self.power(result, args[0], before[0], _POWERS[args[1]])
        if name in ("sigmoid_backward", "tanh_backward"):
            return self.through(name, result, args, before)
        if name in ("sum", "mean") and kwargs.get("dtype") not in (None, result.dtype):
            return None
        return super().value(name, args, kwargs, before, result)

    def apply(self, name: str, result: torch.Tensor, args: Any, before: list[Any]) -> Shadows:
        """Do one operation; an operand in a wider format is perhaps rounded to that of the result first."""
        shape, rule = tuple(result.shape), _RULES[name]
        floats, shadows, narrowed = [], [], []
        for argument, shadow in zip(args, before, strict=True):
            numbers = as_floats(argument)
            own = shadow if shadow is not argument else self.literal(numbers)
            plain, given = np.broadcast_to(numbers, shape), np.broadcast_to(own, shape)
            lost = np.zeros(())
            if name in _BINARY:
                narrow = torch.from_numpy(np.array(plain)).to(result.dtype).double().numpy()
                with np.errstate(invalid="ignore"):  # of an infinity
                    lost = np.abs(narrow - plain)
            floats.append(plain)
            shadows.append(made(given["value"], given["bound"] + lost))
            narrowed.append(lost)
        actual = as_floats(result)
        found = self.slots.arithmetic.apply(name, "f64", actual, tuple(floats), tuple(shadows))
        with np.errstate(all="ignore"):
            ideal = rule.value(*floats)
            rounding = _rounding(format_of(result), ideal)
            allowed = rule.allowed * rounding + rule.moved(*floats, *narrowed)
        if not rule.exact:
            found["bound"] += rounding
        return _within(found, actual, ideal, allowed)

    def literal(self, number: Array) -> Shadows:
        """Return the shadow of a Python number."""
        return self.slots.lift(np.atleast_1d(number), "f64").reshape(np.shape(number))

    def power(
        self, result: torch.Tensor, base: torch.Tensor, shadows: Array, steps: tuple[str, ...]
    ) -> Array:
        """Do a power as products or a root, which torch may round at every step."""
        plain, found = as_floats(base), shadows
        with np.errstate(all="ignore"):
            exact = plain
            for step in steps:
                operands = (exact, plain) if step == "mul" else (exact,)
                with_shadows = (found, shadows) if step == "mul" else (found,)
                exact = _RULES[step].value(*operands)
                found = self.slots.arithmetic.apply(step, "f64", exact, operands, with_shadows)
        actual = as_floats(result)
        found = self.slots.arithmetic.apply("cvt", "f64", actual, (exact,), (found,))
        return _within(found, actual, exact, 2 * _BASIC * _rounding(format_of(result), exact))

    def through(self, name: str, result: torch.Tensor, args: Any, before: list[Any]) -> Shadows:
        """Do grad * y * (1 - y) of a sigmoid, or grad * (1 - y * y) of a tanh."""
        apply = self.slots.arithmetic.apply
        (grad, y), (shadows, of_y) = (as_floats(a) for a in args[:2]), before[:2]
        one, of_one = np.ones_like(y), made(np.ones_like(y), 0.0)
        first = y if name == "sigmoid_backward" else y * y
        of_first = of_y if name == "sigmoid_backward" else apply("mul", "f64", first, (y, y), (of_y, of_y))
        left = one - first
        of_left = apply("sub", "f64", left, (one, first), (of_one, of_first))
        if name == "sigmoid_backward":
            of_left = apply("mul", "f64", y * left, (y, left), (of_y, of_left))
            left = y * left
        found = apply("mul", "f64", grad * left, (grad, left), (shadows, of_left))
        actual = as_floats(result)
        found = apply("cvt", "f64", actual, (grad * left,), (found,))
        # 1 - y is rounded as a number of size 1, however small it is.
        return _within(found, actual, grad * left, _FUNCTION * _rounding(format_of(result), grad))

    def product(
        self,
        name: str,
        args: Sequence[object],
        kwargs: Mapping[str, float],
        before: Sequence[Shadows],
        result: torch.Tensor,
    ) -> Shadows | None:
        """Do a matrix product, and count one rounding of its result at least."""
        found = super().product(name, args, kwargs, before, result)
        if found is not None:
            found["bound"] += _rounding(format_of(result), as_floats(result))
        return found

    def total(self, name: str, args: Any, before: list[Any], result: torch.Tensor) -> Shadows:
        """Sum or mean over some dimensions, in whatever order."""
        tensor = args[0]
        dims = args[1] if len(args) > 1 and args[1] is not None and args[1] != [] else range(tensor.dim())
        axes = tuple(d % tensor.dim() for d in ([dims] if isinstance(dims, int) else dims))
        plain, shadows = as_floats(tensor), before[0]
        count = int(np.prod([tensor.shape[axis] for axis in axes], dtype=np.int64))
        over = float(count) if name == "mean" else 1.0
        shape, held = tuple(result.shape), format_of(result)

        def summed(values: Array) -> Array:
            share: Array = np.sum(values, axis=axes).reshape(shape) / over
            return share

        with np.errstate(invalid="ignore"):  # of infinities
            size, exact = summed(np.abs(plain)), summed(plain)
            away = np.abs(as_floats(result) - exact)
        lost = (count + 16) * 2.0**-53 * (size + np.abs(exact))
        bound = (summed(shadows["bound"]) + away + _rounding(held, exact) + lost) * (
            1.0 + (count + 16) * 2.0**-52
        )
        # Torch adds at most so many numbers one after the other, in the format of the result or a wider one.
        allowed = (count + _BASIC) * _rounding(held, size) + lost
        return _within(made(summed(shadows["value"]), bound), as_floats(result), exact, allowed)


def format_of(tensor: torch.Tensor) -> Format:
    """Return the format of a tensor's elements."""
    return FORMATS[str(tensor.dtype).removeprefix("torch.")]


def _within(found: Shadows, result: Array, ideal: Array, allowed: Array) -> Shadows:
    """Return shadows without a bound where torch's result errs by more than is allowed."""
    with np.errstate(all="ignore"):
        inside = np.abs(result - ideal) <= allowed
    return made(found["value"], np.where(inside, found["bound"], np.inf))


def _rounding(held: Format, size: Array) -> Array:
    """Return what one rounding of a number of this size may err by."""
    return held.u * np.abs(size) + held.omega


def bounds(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Execute with `<name>|bound` and `<name>|unrounded` for every output; called in the child."""
    slots = Slots(Followed())
    opened: Any = SimpleNamespace(slots=slots)
    given = {n: made(t.double().numpy(), 0.0) for n, t in case.given.items() if t.numel()}
    with TorchSlots(slots):
        seen, shadows = execute_with_shadows(
            subject, case, backend=backend, opened=opened, given=given, gradients=gradients
        )
    if seen.status != "ok":
        return seen
    found = dict(seen.outputs)
    for name, tensor in seen.outputs.items():
        if name in shadows and tensor is not None and tensor.numel():
            found[f"{name}|bound"] = torch.from_numpy(np.array(shadows[name]["bound"]))
            found[f"{name}|unrounded"] = torch.from_numpy(np.array(shadows[name]["value"]))
    without = ", ".join(sorted(slots.counters.uncovered))
    lost = f"torch operations without a rule: {without}" if without else ""
    # A polynomial that stands for a function is torch's own, and measured as the function that it stands for.
    return Observation(status="ok", outputs=found, found=ShadowedRun(lost=lost, how_lost=lost))
