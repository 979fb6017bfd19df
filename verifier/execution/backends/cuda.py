"""Subjects on a real CUDA device: Triton as it is, CUDA C++ through NVRTC, torch operators."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache

from verifier.arithmetic.formats import ieee
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import _triton
from verifier.machine.culprit import passed_on
from verifier.ops import Setting
from verifier.records.compiled_code import CompiledCode
from verifier.records.observation import Aftermath
from verifier.records.subject import Subject

_open = ExitStack()

# Documented errors in units of u = 2**-24: PTX ISA, approximate instructions of float32
# (division full range 2 ulp, reciprocal 1 ulp, sqrt 2**-23, rsqrt 2**-22.9, ex2 2**-22.5 relative);
# an error of c ulp of the result is at most (2c + 1) u relative to the correctly rounded one.
# The reciprocal square root is the whole of 1 / sqrt: an approximate root and quotient (3 + 5) err more
# than rsqrt, and a compiler has both at hand.
DOCUMENTED = {
    "division": 5.0,
    "reciprocal": 3.0,
    "square_root": 3.0,
    "reciprocal_square_root": 8.0,
    "exponential": 6.0,
    "exponential_underflow": 2.0**-126,
    # Triton's exp is ex2 of a product with log2(e); CUDA's expf is not, and so errs less.
    "exponential_argument": 2.0,
    # logf is documented to 1 ulp; Triton's log is the same function of libdevice.
    "logarithm": 3.0,
    # tanhf is documented to 2 ulp; Triton's is libdevice's, which flushes subnormal arguments.
    "hyperbolic_tangent": 5.0,
    "tangent_underflow": 2.0**-126,
}
# exp, log and tanh of doubles are documented to 1 ulp; division and square root are correctly rounded.
DOCUMENTED_DOUBLE = {"exponential": 3.0, "logarithm": 3.0, "hyperbolic_tangent": 3.0}


def documented(name: str) -> dict[str, float]:
    """Return the documented errors of the operations in a format, in units of its roundoff."""
    return {"float32": DOCUMENTED, "float64": DOCUMENTED_DOUBLE}.get(name, {})


def _lost() -> bool:
    """Return whether every further call fails, as after an illegal access: only a new process helps."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


@cache
def _device_seen() -> bool:
    import torch

    return torch.cuda.is_available()


class Cuda(Backend):
    """The real device; a subject that spoils its context spoils no other's."""

    name = "cuda"
    summary = "the real device that torch sees"
    languages = ("triton", "cuda", "binary")
    powers = frozenset({Power.FAR_ROWS, Power.READS_CODE})
    preference = 10
    shared_device = True
    child_per_subject = True

    def unavailable(self) -> str | None:
        """Say why there is no device."""
        return None if _device_seen() else "torch sees no CUDA device here"

    def setting(self, subject: Subject, dtype: str) -> Setting:
        """Return the documented arithmetic of the device and the declared trees."""
        name = subject.accumulation(dtype)
        arithmetic = ieee(
            name,
            **documented(name),
            atomics=True,  # until the code is known
            evidence="documented errors of CUDA's instructions, met by an H200 for every float32",
        )
        scalar = "float32" if subject.language == "triton" else None
        return Setting(arithmetic=arithmetic, trees=subject.claim.trees, scalar_format=scalar)

    def environment(self) -> dict[str, str]:
        """Make launches synchronous, so that an illegal access is reported where it happens.

        Whether there is a device is asked of NVML: a process that asked CUDA cannot fork one that uses it.
        """
        return {
            "CUDA_LAUNCH_BLOCKING": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            **_triton.writable_cache(),
        }

    def preload(self) -> None:
        """Import Triton's compiler where it is."""
        _triton.preload()

    def prepare(self, **options: object) -> None:
        """Count launches from now on."""
        super().prepare(**options)
        if _triton.triton_missing() is None:
            from verifier.machine.device.triton_cache import keyed_by_file

            _triton.count_launches()
            _open.enter_context(keyed_by_file())

    def device(self) -> str:
        """Return the device that tensors are placed on."""
        return "cuda"

    def begin(self) -> None:
        """Start an execution."""
        _triton.reset()

    def finish(self) -> None:
        """Wait for the device, so that its errors surface here."""
        import torch

        passed_on(torch.cuda.synchronize)

    def launches(self) -> int:
        """Count launches since the start of the execution."""
        return _triton.launches()

    def launched(self, subject: Subject) -> int | None:
        """Count what this process has launched; None for CUDA C++ that comes from elsewhere than a `.cu`."""
        return _triton.launched(subject)

    def compiled(self, host: frozenset[str]) -> CompiledCode | None:
        """Say what the code launched since the start of the execution consists of; None if nothing was.

        host: names of torch operations that computed meanwhile. What ptxas fuses does not stand in the PTX:
        a product and a sum that name no rounding count as fused.
        """
        from verifier.execution.backends import _read_code

        return _read_code.of_codes(_triton.codes(), host)

    def aftermath(self, _error: BaseException) -> Aftermath:
        """Say of an error that left the context unusable that the process is lost."""
        return Aftermath(died=_lost())


BACKEND = Cuda()
