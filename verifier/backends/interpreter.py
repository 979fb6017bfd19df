"""Triton kernels in Triton's own interpreter: NumPy executes the program, block by block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from verifier.arithmetic import ieee
from verifier.backends import _triton
from verifier.ops import Setting
from verifier.subjects import Subject, Trees
from verifier.trees import any_order

NAME = "interpreter"
SUMMARY = "Triton kernels in Triton's interpreter (NumPy on the CPU)"
LANGUAGES = ("triton",)

# NumPy's vectorised float32 exp and log err by at most 2.52 and 3.83 ulp of the exact result, that is
# twice as many u. Source: comments of NumPy's loops_exponent_log.dispatch.c.src.
VECTORISED = {"exponential": 5.04, "logarithm": 7.66}


def unavailable() -> str | None:
    """Say why Triton is not there."""
    return _triton.triton_missing()


def refuses(subject: Subject, dtype: str) -> str | None:
    """Refuse bfloat16: the interpreter computes on its raw 16-bit patterns and truncates in casts."""
    if dtype == "bfloat16" or subject.accumulation(dtype) == "bfloat16":
        return (
            "Triton's interpreter computes bfloat16 wrongly (raw bits, truncating casts); use another backend"
        )
    return None


def setting(subject: Subject, dtype: str) -> Setting:
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


def environment() -> dict[str, str]:
    """Switch the interpreter on: it is read when a kernel is decorated."""
    return {"TRITON_INTERPRET": "1"}


def prepare() -> None:
    """Count launches from now on."""
    _triton.count_launches()


def device() -> str:
    """Return the device that tensors are placed on."""
    return "cpu"


def begin() -> None:
    """Start an execution."""
    _triton.reset()


def finish() -> None:
    """Wait for the end of an execution: the interpreter has none."""


def launches() -> int:
    """Count launches since the start of the execution."""
    return _triton.launches()


def launched(subject: Subject) -> int | None:
    """Count what this process has launched."""
    return _triton.launched(subject)


def facts(error: BaseException | None = None) -> dict[str, Any]:
    """Say how many kernels were launched."""
    del error
    return {"launches": _triton.launches()}
