"""Triton kernels in Triton's own interpreter: NumPy executes the program, block by block."""

from __future__ import annotations

from dataclasses import replace

from verifier.arithmetic.formats import ieee
from verifier.arithmetic.trees.tree import any_order
from verifier.execution.backend import Backend
from verifier.execution.backends import _triton
from verifier.ops import Setting
from verifier.records.subject import Subject, Trees

# NumPy's vectorised float32 exp and log err by at most 2.52 and 3.83 ulp of the exact result, that is
# twice as many u. Source: comments of NumPy's loops_exponent_log.dispatch.c.src.
VECTORISED = {"exponential": 5.04, "logarithm": 7.66}


class Interpreter(Backend):
    """Triton's interpreter."""

    name = "interpreter"
    summary = "Triton kernels in Triton's interpreter (NumPy on the CPU)"
    languages = ("triton",)
    preference = 30
    copied = False

    def unavailable(self) -> str | None:
        """Say why Triton is not there."""
        return _triton.triton_missing()

    def refuses(self, subject: Subject, dtype: str) -> str | None:
        """Refuse bfloat16: the interpreter computes on its raw 16-bit patterns and truncates in casts."""
        if dtype == "bfloat16" or subject.accumulation(dtype) == "bfloat16":
            return (
                "Triton's interpreter computes bfloat16 wrongly (raw bits, truncating casts); "
                "use another backend"
            )
        return None

    def setting(self, subject: Subject, dtype: str) -> Setting:
        """Return IEEE arithmetic and any order: NumPy chooses the order of its sums.

        Scalar arguments arrive as float32, as Triton passes them.
        """
        name = subject.accumulation(dtype)
        arithmetic = ieee(
            name,
            **(VECTORISED if name == "float32" else {}),
            contracts=False,
            evidence="IEEE 754 operations of NumPy in the interpreter",
        )
        trees = replace(
            subject.claim.trees, statistics=any_order(), row_gradients=any_order(), columns=any_order()
        )
        assert isinstance(trees, Trees)
        return Setting(arithmetic=arithmetic, trees=trees, scalar_format="float32")

    def environment(self) -> dict[str, str]:
        """Switch the interpreter on: it is read when a kernel is decorated."""
        return {"TRITON_INTERPRET": "1"}

    def prepare(self, **options: object) -> None:
        """Count launches from now on."""
        super().prepare(**options)
        _triton.count_launches()

    def begin(self) -> None:
        """Start an execution."""
        _triton.reset()

    def launches(self) -> int:
        """Count launches since the start of the execution."""
        return _triton.launches()

    def launched(self, subject: Subject) -> int | None:
        """Count what this process has launched."""
        return _triton.launched(subject)


BACKEND = Interpreter()
