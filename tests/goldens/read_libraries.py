"""Launches of norms that Liger-Kernel and flash-linear-attention publish, unmodified, on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from read_kernels import DTYPES, Recorder, fill_fresh_memory, recording

EPS, ROWS = 1e-5, 3
COLUMNS = (96, 520)
"""No power of two; fla-core has one kernel for rows of at most 512 columns, and another for longer ones."""
Draw = Callable[..., torch.Tensor]
Call = Callable[[Draw, int], torch.Tensor | tuple[torch.Tensor, ...]]


def rms_norm_of_liger(casting: str, row_mode: bool | None) -> Call:
    """Give Liger's RMS norm with a mode of casts, by rows or by blocks of rows."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction as Function

    offset = 1.0 if casting == "gemma" else 0.0
    return lambda draw, n: Function.apply(draw(ROWS, n), draw(n), EPS, offset, casting, False, row_mode)


def of_liger() -> dict[str, Call]:
    """Give calls of Liger-Kernel by name."""
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as FusedAdd
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction as LayerNorm
    from liger_kernel.ops.poly_norm import LigerPolyNormFunction as PolyNorm
    from liger_kernel.ops.softmax import LigerSoftmaxFunction as Softmax

    rms_norms = {
        f"liger_rms_norm_{casting}_{'rows' if row_mode else 'blocks'}": rms_norm_of_liger(casting, row_mode)
        for casting in ("llama", "gemma", "none")
        for row_mode in (True, None)
    }
    return rms_norms | {
        "liger_layer_norm": lambda draw, n: LayerNorm.apply(draw(ROWS, n), draw(n), draw(n), EPS),
        "liger_fused_add_rms_norm": lambda draw, n: FusedAdd.apply(
            draw(ROWS, n), draw(ROWS, n), draw(n), EPS, 0.0, "llama", False
        ),
        "liger_softmax": lambda draw, n: Softmax.apply(draw(ROWS, n)),
        "liger_poly_norm": lambda draw, n: PolyNorm.apply(
            draw(ROWS, n), draw(3), draw(1).reshape(()), 1e-6, False
        ),
    }


def of_fla() -> dict[str, Call]:
    """Give calls of flash-linear-attention by name."""
    from fla.modules.norm import fused_norm_gate as gated
    from fla.modules.norm import l2norm
    from fla.modules.norm import layernorm as plain

    def norm(function: Callable[..., Any], **options: Any) -> Call:
        return lambda draw, n: function(draw(ROWS, n), draw(n), draw(n), eps=EPS, **options)

    def with_residual(draw: Draw, n: int) -> Any:
        return plain.rms_norm(draw(ROWS, n), draw(n), None, residual=draw(ROWS, n), eps=EPS, prenorm=True)

    def with_gate(function: Callable[..., Any], activation: str) -> Call:
        return lambda draw, n: function(
            draw(ROWS, n), draw(ROWS, n), draw(n), draw(n), activation=activation, eps=EPS
        )

    return {
        "fla_layer_norm": norm(plain.layer_norm),
        "fla_rms_norm": norm(plain.rms_norm),
        "fla_rms_norm_residual": with_residual,
        "fla_layer_norm_gated": with_gate(gated.layer_norm_gated, "swish"),
        "fla_rms_norm_gated": with_gate(gated.rms_norm_gated, "sigmoid"),
        "fla_l2_norm": lambda draw, n: l2norm.l2norm(draw(ROWS, n), EPS),
    }


@contextmanager
def first_configuration() -> Iterator[None]:
    """Let an autotuner take its first configuration without trying any."""
    from triton.runtime.autotuner import Autotuner

    usual = Autotuner.run

    def run(tuner: Any, *given: Any, **options: Any) -> Any:
        tuner.configs = tuner.configs[:1]
        return usual(tuner, *given, **options)

    Autotuner.run = run
    try:
        yield
    finally:
        Autotuner.run = usual


def run(call: Call, dtype: torch.dtype, columns: int) -> None:
    """Run forward and backward."""
    generator = torch.Generator().manual_seed(11)

    def draw(*shape: int) -> torch.Tensor:
        numbers = torch.randn(*shape, generator=generator, dtype=torch.float64)
        if len(shape) == 2:  # rows of unlike means and scales
            numbers = numbers * torch.tensor([[1.0], [0.01], [30.0]]) + torch.tensor([[0.0], [1.0], [-50.0]])
        return numbers.to(dtype).cuda().requires_grad_()

    results = call(draw, columns)
    results = results if isinstance(results, tuple) else (results,)
    slopes = [torch.randn(*r.shape, generator=generator, dtype=torch.float64) for r in results]
    torch.autograd.backward(results, [s.to(r) for s, r in zip(slopes, results, strict=True)])


def read(root: Path) -> None:
    """Write tests/goldens/libraries.npz."""
    recorder, failed = Recorder(), []
    fill_fresh_memory()
    with recording(recorder), first_configuration():
        for name, call in {**of_liger(), **of_fla()}.items():
            for dtype in DTYPES:
                recorder.where = {"subject": name, "dtype": str(dtype).removeprefix("torch.")}
                for columns in COLUMNS:
                    try:
                        run(call, dtype, columns)
                    except Exception as error:
                        failed.append(f"{name} {dtype} {columns}: {type(error).__name__}: {error}")
    versions = {package: version(package) for package in ("liger-kernel", "fla-core")}
    recorder.write(root / "tests/goldens/libraries.npz", failed, packages=versions)
