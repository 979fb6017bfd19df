"""Leaves out Triton's last stage, the assembly of machine code, since the machine runs the PTX before it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from verifier.machine.culprit import passed_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEY: Final = "assembled for a machine that runs PTX"
"""Part of the key of Triton's caches, so that a device never meets an empty binary."""
_SINCE: Final = (3, 7)
"""Version of Triton from which the hook has a key of its own in the caches."""


@contextmanager
def left_out() -> Iterator[None]:
    """Compile Triton's kernels to PTX and no further, where nothing but a device would miss the rest.

    A quarter of the time of a compilation is the assembler's. What the compiler wrote, the assembler takes;
    what a kernel's author wrote (inline assembly, options of the assembler) is assembled as ever, so that
    mistakes in it are found.
    """
    from triton import knobs

    if _before_the_hook() or knobs.runtime.add_stages_inspection_hook is not None:
        yield
        return
    knobs.runtime.add_stages_inspection_hook = _inspected
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = None


def _before_the_hook() -> bool:
    from triton import __version__

    return tuple(int(part) for part in __version__.split(".")[:2]) < _SINCE


def _inspected(*pipeline: Any) -> tuple[str, str] | None:
    """Answer Triton's two questions: for the key without arguments, for changed stages with five."""
    if not pipeline:
        return _KEY, _KEY
    _, stages, options, _, _ = pipeline
    if "ttir" in stages and "cubin" in stages and not getattr(options, "ptx_options", None):
        _Assembler(stages)
    return None


class _Assembler:
    """The stage that assembles: it runs if the kernel's author wrote assembly."""

    def __init__(self, stages: dict[str, Callable[[object, object], object]]) -> None:
        """Take the place of the stage, and look at what the first one makes."""
        self.lower, self.assemble = stages["ttir"], stages["cubin"]
        self.written = True
        stages["ttir"], stages["cubin"] = self.look, self.run

    def look(self, source: object, metadata: object) -> object:
        """Make Triton's first form of the kernel, in which inline assembly still is an operation."""
        from triton import knobs

        module = passed_on(self.lower, source, metadata)
        self.written = knobs.compilation.dump_ir or "elementwise_inline_asm" in str(module)
        return module

    def run(self, source: object, metadata: object) -> object:
        """Return the binary, or an empty one; what the assembler refuses is what the author wrote."""
        return passed_on(self.assemble, source, metadata) if self.written else b""
