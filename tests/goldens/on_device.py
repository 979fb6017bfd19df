"""PTX on a real device: loaded by its driver, launched on torch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver


def launch(text: str, kernel: str, grid: int, block: int, arguments: Sequence[Any]) -> None:
    """Run a kernel whose arguments are tensors (pointers) and numpy scalars.

    Raises RuntimeError when the driver refuses it.
    """
    values = [
        np.array([a.data_ptr()], dtype=np.uint64) if isinstance(a, torch.Tensor) else np.array([a])
        for a in arguments
    ]
    pointers = np.array([v.ctypes.data for v in values], dtype=np.uint64)
    stream = torch.cuda.current_stream().cuda_stream
    succeed(
        driver.cuLaunchKernel(
            function(text, kernel), grid, 1, 1, block, 1, 1, 0, stream, pointers.ctypes.data, 0
        )
    )


@cache
def function(text: str, kernel: str) -> Any:
    """Load a module once."""
    torch.zeros(1, device="cuda")  # makes torch's context current
    module = succeed(driver.cuModuleLoadData(text.encode() + b"\0"))
    return succeed(driver.cuModuleGetFunction(module, kernel.encode()))


def succeed(answer: tuple[Any, ...]) -> Any:
    """Give the result of a driver call, or raise."""
    status, *results = answer
    if int(status):
        raise RuntimeError(f"the CUDA driver answers {status.name}")
    return results[0] if results else None


def description() -> dict[str, str]:
    """Say which device and which toolchain answered."""
    import triton

    capability = torch.cuda.get_device_capability()
    return {
        "device": torch.cuda.get_device_name(),
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "driver": str(succeed(driver.cuDriverGetVersion())),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": triton.__version__,
    }
