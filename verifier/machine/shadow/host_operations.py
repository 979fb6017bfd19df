"""Shadows across host operations: what torch does between two launches is done on shadows too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.culprit import passed_on
from verifier.machine.device.dispatch_mode import is_custom, run_custom
from verifier.machine.device.dispatching import Dispatching
from verifier.machine.shadow.arithmetics.selection import REORDERED
from verifier.machine.shadow.host_products import PRODUCTS, Shadowed, product_of

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.shadow.slots import Slots

# Operations whose results share the storage of their operand, or have no values.
# fmt: off
VIEWS = frozenset((
    "view", "_unsafe_view", "as_strided", "slice", "select", "transpose", "t", "permute", "expand",
    "unsqueeze", "squeeze", "detach", "alias", "split", "split_with_sizes", "chunk", "unbind",
    "reshape", "narrow", "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided",
    "is_same_size", "_reshape_alias", "squeeze_", "unsqueeze_", "t_", "transpose_", "detach_",
))
# fmt: on
# Operations that ask a tensor for its shape alone, or overwrite all of it.
# fmt: off
_FILLED = frozenset((
    "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "zero_", "fill_",
    "normal_", "uniform_", "random_",
))
# fmt: on
_SCATTERED = {"select_backward": 4, "slice_backward": 6}
"""Operations that put a gradient among zeros, where a part of a tensor was taken, and their arguments."""
_JOINED = frozenset({"cat", "stack"})
"""Operations that are given their tensors in a list."""
_COPIES = frozenset({"clone", "_to_copy", "contiguous", "to"})
_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div"}
_KINDS = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32", "torch.float64": "f64"}


class HostSlots(Dispatching):
    """Follows copies, sums and basic arithmetic; counts what it does not know, and forgets its shadows."""

    def __init__(self, slots: Slots) -> None:
        """Follow what happens to tensors that have shadows here."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.slots = slots

    def dispatched(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run the operation on floats, then on shadows."""
        if is_custom(func):
            return run_custom(self, func, args, kwargs)
        name = func.overloadpacket.__name__
        base = name.rstrip("_")
        before, read = self.operands(name, args), args
        if before is not None and (name != base or "out" in kwargs):
            read = tuple(map(_kept, args))
        result = passed_on(func, *args, **kwargs)
        if name in VIEWS:
            return result
        if before is None or not self.follow(base, read, kwargs, before, result):
            self.drop(name, args, result)
        return result

    def operands(self, name: str, args: Any) -> list[Any] | None:
        """Read the operands' shadows before an in-place operation changes their bits; None without any."""
        import torch

        read = args[0] if name in _JOINED else args
        tensors = [a for a in read if isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel()]
        if name in VIEWS or not any(self.slots.has(t) for t in tensors):
            return None
        return [
            self.slots.get(a) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in read
        ]

    def follow(
        self,
        name: str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        before: list[object],
        result: object,
    ) -> bool:
        """Do the operation on shadows; False if it is not known. args: with the numbers that were read."""
        import torch

        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return False
        value = self.value(name, args, kwargs, before, result)
        if value is None:
            return False
        self.slots.set(result, np.broadcast_to(value, tuple(result.shape)))
        return True

    def value(
        self, name: str, args: Any, kwargs: Mapping[str, Any], before: list[Any], result: torch.Tensor
    ) -> Array | None:
        """Shadows of the result, or None."""
        heard = getattr(self.slots.arithmetic, "on_host", None)
        if heard is not None:
            heard(name)
        if name in _COPIES:
            return self.apply("cvt", result, args[:1], before[:1])
        if name == "copy":
            return self.apply("cvt", result, args[1:2], before[1:2])
        if name == "neg":
            return self.apply("neg", result, args[:1], before[:1])
        if name in _BINARY and kwargs.get("alpha", 1) == 1 and "rounding_mode" not in kwargs:
            return self.apply(_BINARY[name], result, args[:2], before[:2])
        if name in ("sum", "mean"):
            return self.total(name, args, before, result)
        if name in PRODUCTS:
            return self.product(name, args, kwargs, before, result)
        if len(args) == _SCATTERED.get(name):
            return self.scattered(args, before[0], result)
        if name == "constant_pad_nd":
            return self.padded(args, before[0], result)
        if name == "stack":
            return np.stack(before, axis=args[1] if len(args) > 1 else 0)
        if name == "cat":
            # Of tensors without a dimension too many, as torch allows, those of one axis are empty.
            parts = [part for part in before if np.ndim(part) == result.dim()]
            return np.concatenate(parts, axis=args[1] if len(args) > 1 else 0)
        return None

    def scattered(self, args: Any, shadows: Array, result: torch.Tensor) -> Array:
        """Put a gradient's shadows among those of zeros; args: gradient, sizes, dimension, what was taken."""
        dim, *taken = args[2:]
        found = np.broadcast_to(self.slots.lift(np.zeros(1), "f64"), tuple(result.shape)).copy()
        part = np.moveaxis(found, dim, 0)
        if len(taken) == 1:
            part[taken[0]] = shadows
        else:
            part[slice(*taken)] = np.moveaxis(shadows, dim, 0)
        return found

    def padded(self, args: Any, shadows: Array, result: torch.Tensor) -> Array:
        """Put shadows among those of a number, or cut them; args: tensor, widths from the last, number."""
        number = float(args[2]) if len(args) > 2 else 0.0
        found = np.broadcast_to(self.slots.lift(np.full(1, number), "f64"), tuple(result.shape)).copy()
        before = [0] * (result.dim() - len(args[1]) // 2) + list(args[1][::2])[::-1]
        taken = [slice(max(-width, 0), None) for width in before]
        held = shadows[tuple(taken)]
        ends = [min(n, m - max(w, 0)) for n, m, w in zip(held.shape, found.shape, before, strict=True)]
        within = tuple(slice(max(w, 0), max(w, 0) + n) for w, n in zip(before, ends, strict=True))
        found[within] = held[tuple(map(slice, ends))]
        return found

    def apply(self, name: str, result: torch.Tensor, args: Any, before: list[Any]) -> Array:
        """Do one basic operation with broadcasting; Python numbers are lifted as float64."""
        shape = tuple(result.shape)
        floats, shadows = [], []
        for argument, shadow in zip(args, before, strict=True):
            plain = as_floats(argument)
            floats.append(np.broadcast_to(plain, shape))
            lifted = (
                shadow
                if shadow is not argument
                else self.slots.lift(np.atleast_1d(plain), "f64").reshape(np.shape(plain))
            )
            shadows.append(np.broadcast_to(lifted, shape))
        kind = _KINDS[str(result.dtype)]
        return self.slots.arithmetic.apply(name, kind, _as_computed(result), tuple(floats), tuple(shadows))

    def total(self, name: str, args: Any, before: list[Any], result: torch.Tensor) -> Array:
        """Sum or mean over some dimensions, one slice after the other."""
        tensor = args[0]
        dims = args[1] if len(args) > 1 and args[1] else list(range(tensor.dim()))
        axes = tuple(d % max(tensor.dim(), 1) for d in ([dims] if isinstance(dims, int) else dims))
        shadows = np.moveaxis(np.atleast_1d(before[0]), axes, range(len(axes)))
        floats = np.moveaxis(np.atleast_1d(as_floats(tensor)), axes, range(len(axes)))
        rest = shadows.shape[len(axes) :] or (1,)
        shadows, floats = shadows.reshape(-1, *rest), floats.reshape(-1, *rest)
        total, partial = shadows[0], floats[0]
        for row, value in zip(shadows[1:], floats[1:], strict=True):
            following = partial + value
            total = self.slots.arithmetic.apply("add", "f64", following, (partial, value), (total, row))
            partial = following
        if name == "mean":
            count = np.full(np.shape(partial), float(len(shadows)))
            divisor = np.broadcast_to(self.slots.lift(count.reshape(-1)[:1], "f64"), np.shape(partial))
            total = self.slots.arithmetic.apply(
                "div", "f64", partial / len(shadows), (partial, count), (total, divisor)
            )
        # What torch computed, in its own order and format, differs from the partial sums by its own error.
        rounded = _as_computed(result).reshape(np.shape(partial))
        partial = partial / len(shadows) if name == "mean" else partial
        total = self.slots.arithmetic.apply("cvt", REORDERED, rounded, (partial,), (total,))
        return np.asarray(total).reshape(tuple(result.shape))

    def product(
        self,
        name: str,
        args: Sequence[object],
        kwargs: Mapping[str, float],
        before: Sequence[Array],
        result: torch.Tensor,
    ) -> Array | None:
        """Shadows of a matrix product; None where torch computed something else, or erred as no sum does."""
        import torch

        floats = [isinstance(a, torch.Tensor) and a.is_floating_point() for a in args]
        if not all(known or argument is None for known, argument in zip(floats, args, strict=True)):
            return None
        operands = [
            Shadowed(floats=as_floats(argument), shadows=shadows) if known else None
            for known, argument, shadows in zip(floats, args, before, strict=True)
        ]
        found = product_of(self.slots.arithmetic, name, operands, kwargs)
        kind, shape = _KINDS[str(result.dtype)], tuple(result.shape)
        return None if found is None else found.following(kind, _as_computed(result), shape)

    def drop(self, name: str, args: Any, result: object) -> None:
        """Forget the shadows of what an unknown operation wrote, and count it if it read shadows."""
        import torch

        outputs = result if isinstance(result, tuple | list) else [result]
        lists = [a if isinstance(a, tuple | list) else [a] for a in args]
        tensors = (a for among in lists for a in among if isinstance(a, torch.Tensor) and a.numel())
        read = any(map(self.slots.tells, tensors))
        if read and name not in _FILLED:
            self.slots.counters.uncovered[name] = self.slots.counters.uncovered.get(name, 0) + 1
        for output in outputs:
            if isinstance(output, torch.Tensor):
                self.slots.clear(output)


def _kept(value: object) -> object:
    """Copy a tensor before an operation writes to its memory, or to memory that it shares."""
    import torch

    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def as_floats(value: object) -> Array:
    """Float64 values of a tensor or a number."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().double().numpy()
    return np.asarray(value, dtype=np.float64)


def _as_computed(tensor: torch.Tensor) -> Array:
    """Values of a result in its own format, by which a conversion is known; bfloat16 as float32."""
    import torch

    plain = tensor.detach()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
