"""Sees which torch operations compute while a subject runs, apart from its kernels."""

from __future__ import annotations

import torch
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload

from verifier.machine.culprit import passed_on
from verifier.machine.device.dispatch_mode import is_custom, run_custom
from verifier.machine.device.dispatching import Dispatching

# What rounds nothing but to the format of its result: views, allocations, copies, sums, questions.
# fmt: off
_PLAIN = frozenset((
    "_reshape_alias", "_to_copy", "_unsafe_view", "alias", "arange", "as_strided", "cat",
    "chunk", "clone", "constant_pad_nd", "contiguous", "copy_", "detach", "empty", "empty_like",
    "empty_permuted", "empty_strided", "expand", "fill", "fill_", "full", "full_like", "is_pinned",
    "is_same_size", "lift_fresh", "narrow", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_zeros", "ones", "ones_like", "permute", "repeat", "reshape", "resize_", "select", "select_backward",
    "set_", "slice", "slice_backward", "split", "split_with_sizes", "squeeze", "stack", "sum", "t", "to",
    "transpose", "unbind", "unsqueeze", "view", "zero_", "zeros", "zeros_like",
))
# fmt: on


class HostArithmetic(Dispatching):
    """Collects the names of operations on floats that divide, multiply or otherwise round."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def dispatched(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run the operation as it is."""
        if is_custom(func):
            result = run_custom(self, func, args, kwargs)
            transparent = func._schema.name in OPDEFS  # written in Python: what it does has been seen
        else:
            result = passed_on(func, *args, **kwargs)
            transparent = func.overloadpacket.__name__ in _PLAIN
        name = str(func.overloadpacket.__name__)
        if not transparent and any(map(_floating, (*args, result))):
            self.seen.add(name)
        return result


def _floating(value: object) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_floating, value))
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
