"""Float64 tensors that play a narrower dtype: kernels are compiled for it, and lifted values come back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from verifier.machine.sessions import Session


class Player:
    """A float64 tensor with the dtype of its role and the address of a rounded copy of its storage."""

    def __init__(self, tensor: torch.Tensor, role: torch.dtype, copy: torch.Tensor) -> None:
        """`copy`: the rounded storage, flat."""
        self.base, self.dtype, self.copy = tensor, role, copy
        self.device, self.shape = tensor.device, tensor.shape

    def data_ptr(self) -> int:
        """Address of the first element in the rounded storage."""
        return int(self.copy.data_ptr()) + int(self.base.storage_offset()) * self.copy.element_size()

    def view(self) -> torch.Tensor:
        """Give the rounded tensor with the strides of the original."""
        import torch

        return torch.as_strided(
            self.copy, tuple(self.base.shape), tuple(self.base.stride()), self.base.storage_offset()
        )

    def stride(self, *arguments: Any) -> Any:
        """Strides in elements are the same."""
        return self.base.stride(*arguments)


class Cast:
    """Rounded copies of the float64 storages that one launch sees."""

    def __init__(self, session: Session) -> None:
        """Take the role from the session."""
        self.session = session
        self.copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def player(self, tensor: torch.Tensor) -> Player:
        """Give a tensor its role: its whole storage is rounded, its values become slots."""
        import torch

        role = self.session.plays
        assert role is not None
        key = tensor.untyped_storage().data_ptr()
        if key not in self.copies:
            count = tensor.untyped_storage().nbytes() // 8
            whole = torch.as_strided(tensor.detach(), (count,), (1,), 0)
            rounded = whole.to(role)
            self.copies[key] = (whole, rounded)
            slots = self.session.slots
            assert slots is not None
            slots.set(rounded, whole.numpy())
        return Player(tensor, role, self.copies[key][1])

    def finish(self) -> None:
        """Bring the lifted values back and forget the copies."""
        slots = self.session.slots
        assert slots is not None
        for whole, rounded in self.copies.values():
            # Through numpy: a kernel's stores do not count as in-place operations for autograd either.
            whole.numpy()[...] = slots.get(rounded)
            slots.forget(rounded)


@contextmanager
def casting(session: Session) -> Iterator[None]:
    """Let every Triton launch inside see players in the place of float64 tensors."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        cast = Cast(session)
        result = run(
            self, *(_cast(cast, a) for a in args), **{name: _cast(cast, a) for name, a in kwargs.items()}
        )
        cast.finish()
        return result

    JITFunction.run = wrapper
    try:
        yield
    finally:
        JITFunction.run = run


def _cast(cast: Cast, value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
        return cast.player(value)
    return value
