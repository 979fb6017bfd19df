"""A torch dispatch mode that does not load torch's compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_HIDDEN: dict[type, Callable[..., object]] = {}
"""What the modes of a class do, out of the compiler's sight; to hide it anew takes longer than to do it."""


class Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every torch operation to `dispatched`, out of the compiler's sight.

    torch hides the method of a mode from its compiler by loading it, which costs a child a second of its
    start; where the compiler is not loaded there is nobody to hide from.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch is not to wrap the method: it is hidden below, where that is needed

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run the operation; outside the compiler, if it is loaded."""
        disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
        if disable is None:
            return self.dispatched(func, args, kwargs or {})
        kind = type(self)
        if kind not in _HIDDEN:
            _HIDDEN[kind] = disable(kind.dispatched, wrapping=False)
        return _HIDDEN[kind](self, func, args, kwargs or {})

    def dispatched(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run one operation and return its result; what a mode is for."""
        raise NotImplementedError
