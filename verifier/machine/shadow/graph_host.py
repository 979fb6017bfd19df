"""What torch does between launches, on a recorded graph: copies are followed, the rest is lost loudly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.culprit import passed_on, run_for_subject
from verifier.machine.device.dispatch_mode import is_custom, run_custom
from verifier.machine.device.dispatching import Dispatching
from verifier.machine.shadow.graph_slots import GraphSlots
from verifier.machine.shadow.host_operations import VIEWS
from verifier.machine.shadow.host_overlaps import meets_itself
from verifier.machine.shadow.node_codes import KINDS, LITERAL, coded

if TYPE_CHECKING:
    import torch

_CONSTANTS = frozenset({"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros",
                        "new_ones", "new_full", "zero", "fill", "arange"})  # fmt: skip
_COPIES = frozenset({"clone", "_to_copy", "contiguous", "to"})
_OF_NUMBERS = frozenset({"lift_fresh"})
"""What hands on a tensor that torch has made of numbers of Python."""
_OF_A_COPY = frozenset({"dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"})
"""What a conversion may be told: autograd names where the gradient lies, too."""


class HostGraph(Dispatching):
    """Follows copies that keep the format, and constants; counts what else reads data, and forgets it."""

    def __init__(self, slots: GraphSlots) -> None:
        """Follow what happens to tensors that have nodes here."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.slots = slots

    def dispatched(
        self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Run the operation, then say of what its results are made."""
        if is_custom(func):
            return run_custom(self, func, args, kwargs)
        name = func.overloadpacket.__name__
        tensors = [t for a in (*args, *kwargs.values()) for t in _tensors(a)]
        try:
            result = passed_on(func, *args, **kwargs)
        except Exception:
            if name not in VIEWS and not all(map(self.slots.fixed, tensors)):
                self.slots.asked.add(f"{name}, which raises an error")
            raise
        if name in VIEWS:
            return result
        base = name.rstrip("_")
        changed = list(_written(func, args, kwargs))
        written = [*_tensors(result), *changed]
        if (not written or _shaped_by_data(func)) and not all(map(self.slots.fixed, tensors)):
            self.slots.asked.add(name)
        if how := meets_itself(changed, tensors):
            met = f"{name} {how}"
            self.slots.counters.uncovered[met] = self.slots.counters.uncovered.get(met, 0) + 1
        if any(map(_is_shared, changed)) and not all(map(self.constant, tensors)) and run_for_subject():
            self.slots.asked.add(f"{name} into memory that is not torch's alone")
        exact = all(_same_on_a_device(base, args, kwargs, tensor) for tensor in written)
        if base in _CONSTANTS and exact and not any(map(_tensors, args[1:])):
            for tensor in written:
                if tensor.element_size() > 1:
                    self.slots.set(tensor, np.int64(LITERAL))
                else:
                    self.slots.clear(tensor)
            return result
        origin = args[1] if base == "copy" and len(args) > 1 else args[0] if base in _COPIES else None
        if base in _OF_CONSTANTS and exact and base == name and all(map(self.slots.fixed, tensors)):
            for tensor in written:
                self.slots.set(tensor, np.int64(LITERAL))
            return result
        if isinstance(origin, _tensor_type()) and _same_floats(origin, written):
            self.slots.set(written[0], np.broadcast_to(self.slots.get(origin), tuple(written[0].shape)))
            return result
        # What no rule follows may be read, or changed, where the operation does not say so.
        read = any(map(self.slots.tells, tensors)) or (
            name not in _OF_NUMBERS and not all(map(self.constant, tensors)) and run_for_subject()
        )
        if read and len(written) == 1 and self.computed(base, args, kwargs, written[0], inplace=base != name):
            return result
        if read:
            self.slots.counters.uncovered[name] = self.slots.counters.uncovered.get(name, 0) + 1
        for tensor in written:
            self.slots.clear(tensor)
        return result

    def constant(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's elements are the same for all inputs."""
        return not tensor.numel() or self.slots.fixed(tensor)

    def computed(
        self,
        name: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        result: torch.Tensor,
        *,
        inplace: bool,
    ) -> bool:
        """Make the nodes of an elementwise operation, if it is one that is known.

        torch computes halves in single precision, and rounds what comes out.
        """
        if name == "sum":
            return not inplace and self.summed(args, kwargs, result)
        count = _ELEMENTWISE.get(name)
        kind = KINDS.get(str(result.dtype))
        harmless = _OF_A_COPY if name == "_to_copy" else {"dtype"}
        unknown = set(kwargs) - harmless or len(args) != count or inplace
        if unknown or kind not in ("f16", "bf16", "f32"):
            return False
        if name == "div" and isinstance(args[1], _tensor_type()) and not args[1].dim():
            return False  # by a number that lies on the host a device divides with its reciprocal
        shape, operands = tuple(result.shape), []
        for given in args:
            if isinstance(given, _tensor_type()):
                own = KINDS.get(str(given.dtype))
                if own not in ("f16", "bf16", "f32") or (own != kind != "f32" and name != "_to_copy"):
                    return False
                found = self.slots.outputs(given)
                if own != "f32":
                    found = self.slots.nodes.add(f"torch.to.f32.{own}", found.shape, (found,))
                operands.append(np.broadcast_to(found, shape))
            elif isinstance(given, float | int) and name in ("add", "sub", "mul"):
                bits = np.array(given, dtype=np.float32).view(np.uint32)
                operands.append(self.slots.nodes.add("literal:f32", shape, value=bits))
            else:
                return False
        made = operands[0]
        if name != "_to_copy":
            made = self.slots.nodes.add(f"torch.{name}.f32", shape, tuple(operands))
        if kind != "f32":
            made = self.slots.nodes.add(f"torch.to.{kind}.f32", shape, (made,))
        self.slots.set(result, coded(made, kind))
        return True

    def summed(self, args: tuple[object, ...], kwargs: dict[str, object], result: torch.Tensor) -> bool:
        """Make the nodes of a sum over some axes, if it is one of float32."""
        given, axes = (*args, None, None)[:2]
        if not isinstance(given, _tensor_type()) or kwargs or not given.numel():
            return False
        if not isinstance(axes, list) or not axes:
            return False
        if {KINDS.get(str(given.dtype)), KINDS.get(str(result.dtype))} != {"f32"}:
            return False
        last = range(-len(axes), 0)
        found, bits = (
            np.moveaxis(held, [int(axis) for axis in axes], last).reshape(result.numel(), -1).T
            for held in (self.slots.outputs(given), _bits(given))
        )
        made = self.slots.nodes.unordered_sum(found, bits, _bits(result))
        self.slots.set(result, coded(made.reshape(tuple(result.shape)), "f32"))
        return True


def _bits(tensor: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Return the bits of a float32 tensor's elements, of a copy: an array would share its memory."""
    import torch

    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    bits = copied.view(_word_type()).numpy()
    return bits.view(np.uint32).astype(np.uint64)


def _shaped_by_data(func: torch._ops.OpOverload) -> bool:
    """Whether the shape of the result tells what the operands hold."""
    import torch

    return torch.Tag.dynamic_output_shape in func.tags


def _is_shared(tensor: torch.Tensor) -> bool:
    """Whether others hold the memory of a tensor, an array say: torch cannot make it larger then."""
    import torch

    return torch._C._has_storage(tensor) and not tensor.untyped_storage().resizable()


def _same_on_a_device(
    name: str, args: tuple[object, ...], kwargs: dict[str, object], result: torch.Tensor
) -> bool:
    """Whether an operation on constants gives on a device what it gives here.

    By a number that lies on the host a device divides with its reciprocal; it fuses the product with alpha
    into a sum; it counts up in the format of the result, where the host does so in float64; it computes with
    a number beside a half in float32, where the host rounds the number to half; and floats that no integer of
    the result's format holds become the nearest that it holds, or 0, where here they become another.
    """
    import torch

    if not result.is_floating_point():
        return name != "_to_copy" or _holds(result.dtype, args[0])
    if result.dtype in (torch.float16, torch.bfloat16) and name != "_to_copy":
        numbers = [one for one in args if isinstance(one, float | int)]
        numbers += [one.item() for one in _tensors(args) if not one.dim()]
        if any(torch.tensor(one, dtype=result.dtype).item() != one for one in numbers):
            return False
    if name in ("div", "floor_divide"):
        return len(args) > 1 and isinstance(args[1], _tensor_type()) and args[1].dim() > 0
    if name in ("add", "sub", "rsub"):
        return len(args) == 2 and kwargs.get("alpha", 1) == 1
    if name == "arange":
        exact = 2 / torch.finfo(result.dtype).eps
        return all(isinstance(one, int) and abs(one) <= exact for one in args)
    return True


def _holds(kept: torch.dtype, given: object) -> bool:
    """Whether all elements of a tensor have a value in a format of integers, their fractions apart."""
    import torch

    if not isinstance(given, torch.Tensor) or not given.is_floating_point() or kept == torch.bool:
        return True
    if kept.is_complex:
        return False
    limits = torch.iinfo(kept)
    whole = given.double().trunc()
    return bool(((whole >= float(limits.min)) & (whole < float(limits.max) + 1.0)).all())


def _same_floats(origin: torch.Tensor, written: list[torch.Tensor]) -> bool:
    return origin.is_floating_point() and bool(written) and origin.dtype == written[0].dtype


def _written(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[torch.Tensor]:
    """Give the tensors that an operation changes in place."""
    declared = func._schema.arguments
    given = {**{d.name: a for d, a in zip(declared, args, strict=False)}, **kwargs}
    changed = [d.name for d in declared if d.alias_info is not None and d.alias_info.is_write]
    return [tensor for name in changed for tensor in _tensors(given.get(name))]


_OF_CONSTANTS = frozenset({"add", "sub", "rsub", "mul", "div", "neg", "remainder", "floor_divide",
                           "bitwise_and", "_to_copy", "clone"})  # fmt: skip
"""Operations that give constants where all their tensors are constants."""
_ELEMENTWISE = {"add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "_to_copy": 1}


def _tensor_type() -> type[torch.Tensor]:
    import torch

    return torch.Tensor


def _word_type() -> torch.dtype:
    import torch

    return torch.int32


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, tuple | list):
        return [tensor for one in value for tensor in _tensors(one)]
    return [value] if isinstance(value, _tensor_type()) else []
