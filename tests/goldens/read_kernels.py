"""Launches of our own kernels on a device: PTX, arguments, and memory before and after."""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from on_device import description

from verifier.machine.device import triton_driver as machine_driver
from verifier.subjects import cuda_source
from verifier.subjects.load_file import load_subjects

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
COLUMNS = {"usual": (3, 600), "shared": (2, 1100), "streamed": (1, 60000), "two_blocks": (2, 8200)}
"""Rows and columns; CUDA C++ keeps rows of the second size in shared memory, and reads the third again.

Where clusters share a row, the third has four blocks and the fourth one, backward eight and two.
"""
SIZES = {
    "triton": ("usual",),
    "cuda": ("usual", "shared", "streamed"),
    "clusters": ("usual", "streamed", "two_blocks"),
}
"""Of each file of goldens; kernels that need clusters have one of their own."""
REPEATS = {"streamed": 60, "two_blocks": 40}
KERNELS = Path(__file__).parents[2] / "kernels"
# Subjects whose order of summation is fixed: no atomics.
FORWARD_AND_BACKWARD = (
    "layer_norm_two_pass_triton",
    "layer_norm_welford_triton",
    "layer_norm_textbook_triton",
    "layer_norm_single_block_triton",
    "rms_norm_triton",
    "softmax_triton",
    "log_softmax_triton",
    "softmax_online_triton",
    "log_softmax_online_triton",
    "group_norm_triton",
    "batch_norm_triton",
    "layer_norm_compensated_triton",
    "rms_norm_tiled_triton",
    "softmax_tiled_triton",
    "log_softmax_tiled_triton",
    "layer_norm_two_pass_cuda",
    "layer_norm_welford_cuda",
    "layer_norm_textbook_cuda",
    "softmax_cuda",
    "log_softmax_cuda",
)
# The tutorials' backward passes add in the order in which blocks get a lock; the fused one has none.
CLUSTERS = ("layer_norm_clusters_cuda",)
FORWARD_ONLY = (
    "layer_norm_published_tutorial_older_triton",
    "layer_norm_published_tutorial_newer_triton",
    "layer_norm_residual_cuda",
)


class Recorder:
    """Collects launches; equal arrays are kept once."""

    def __init__(self) -> None:
        """Start empty."""
        self.arrays: dict[str, np.ndarray] = {}
        self.texts: dict[str, str] = {}
        self.launches: list[dict[str, Any]] = []
        self.where: dict[str, str] = {}

    def keep(self, array: np.ndarray) -> str:
        """Keep an array under the hash of its bytes."""
        name = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        self.arrays[name] = array
        return name

    @contextmanager
    def launch(self, ptx: str, kernel: str, shape: tuple[Any, ...], values: list[Any]) -> Iterator[None]:
        """Note a launch: memory of every tensor argument before it and after it."""
        text = "\n".join(line for line in ptx.splitlines() if not line.startswith("//")) + "\n"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.texts[digest] = text
        before = [_memory(v) for v in values]
        yield
        torch.cuda.synchronize()
        arguments = []
        for value, old in zip(values, before, strict=True):
            new = _memory(value)
            if old is None:
                arguments.append(_scalar(value))
            else:
                changed = None if (old == new).all() else self.keep(new)
                arguments.append({"before": self.keep(old), "after": changed})
        grid, block, shared = shape
        self.launches.append(
            {**self.where, "ptx": digest, "kernel": kernel, "grid": grid, "block": block, "shared": shared}
            | {"arguments": arguments}
        )

    def write(self, path: Path, **more: Any) -> None:
        """Write what was collected."""
        manifest = {**description(), **more, "launches": self.launches, "ptx": self.texts}
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = np.frombuffer(lzma.compress(json.dumps(manifest).encode()), dtype=np.uint8)
        np.savez_compressed(path, manifest=packed, **self.arrays)
        print(len(self.launches), "launches,", path.stat().st_size, "bytes")


def _memory(value: Any) -> np.ndarray | None:
    """Bytes of a tensor's elements, or None for what is no tensor; tensors must be dense."""
    if not isinstance(value, torch.Tensor):
        return None
    if not value.is_contiguous():
        raise ValueError("goldens take dense tensors")
    return value.detach().reshape(-1).view(torch.uint8).cpu().numpy().copy()


def _scalar(value: Any) -> dict[str, Any]:
    if value is None:
        return {"null": True}
    if isinstance(value, np.generic):
        return {"dtype": value.dtype.str, "bits": value.tobytes().hex()}
    return {"python": float(value).hex() if isinstance(value, float) else int(value)}


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Note every Triton and CUDA C++ launch made inside."""
    import triton

    active = triton.runtime.driver.active
    usual, on_device = active.launcher_cls, cuda_source._launch_on_device

    class Noting:
        def __init__(self, src: Any, metadata: Any) -> None:
            self.real, self.noted = usual(src, metadata), machine_driver.Launcher(src, metadata)
            for name in (
                "global_scratch_size",
                "profile_scratch_size",
                "launch_cooperative_grid",
                "launch_pdl",
            ):
                if hasattr(self.real, name):
                    setattr(self, name, getattr(self.real, name))

        def __call__(self, *given: Any) -> Any:
            _, values = machine_driver.flatten(self.noted.argument_names, self.noted.types, given[9:])
            metadata = self.noted.metadata
            shape = (tuple(given[:3]), (32 * metadata.num_warps, 1, 1), metadata.shared)
            with recorder.launch(self.noted.ptx, metadata.name, shape, values):
                return self.real(*given)

    def noting(compiled: Any, launch: Any, values: list[Any], device: Any) -> None:
        with recorder.launch(
            compiled.ptx, compiled.entry, (launch.grid, launch.block, launch.shared_bytes), values
        ):
            on_device(compiled, launch, values, device)

    active.launcher_cls, cuda_source._launch_on_device = Noting, noting
    try:
        yield
    finally:
        active.launcher_cls, cuda_source._launch_on_device = usual, on_device


def read(root: Path) -> None:
    """Write tests/goldens/triton.npz, cuda.npz and clusters.npz."""
    fill_fresh_memory()
    failed: list[str] = []
    for file, sizes in SIZES.items():
        recorder = Recorder()
        with recording(recorder):
            for stem in CLUSTERS if file == "clusters" else (*FORWARD_AND_BACKWARD, *FORWARD_ONLY):
                subject = next(s for s in load_subjects(KERNELS / f"{stem}.py") if s.name == stem)
                for dtype in DTYPES if subject.language == file or stem in CLUSTERS else ():
                    recorder.where = {"subject": stem, "dtype": str(dtype).removeprefix("torch.")}
                    for size in sizes:
                        try:
                            run(subject, dtype, size)
                        except Exception as error:
                            failed.append(f"{stem} {dtype} {size}: {type(error).__name__}: {error}")
        recorder.write(root / f"tests/goldens/{file}.npz")
    end(failed)


def end(failed: list[str]) -> None:
    """End with status 1 if a call failed."""
    if failed:
        print("\n".join(failed), file=sys.stderr)
        raise SystemExit(1)


def fill_fresh_memory() -> None:
    """Let fresh memory hold NaN, so that what a launch writes is seen to change."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True


def run(subject: Any, dtype: torch.dtype, size: str) -> None:
    """Run forward and backward, or forward alone where a row is long."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    value, given = inputs(subject.op, size, draw)
    tensors = {
        k: v.to(dtype).cuda().requires_grad_(not k.startswith("running"))
        for k, v in given.items()
        if isinstance(v, torch.Tensor)
    }
    x = value.to(dtype).cuda().requires_grad_()
    arguments = {k: v for k, v in {"input": x, **given, **tensors}.items() if k in subject.signature}
    y = subject(**arguments)
    y = y[0] if isinstance(y, tuple) else y
    if subject.name in CLUSTERS or (subject.name not in FORWARD_ONLY and size != "streamed"):
        gradient = repeated(size, draw) if size in REPEATS else draw(*y.shape)
        y.backward(gradient.to(dtype).cuda())


def repeated(size: str, draw: Any) -> torch.Tensor:
    """Give long rows that repeat themselves, so that they pack."""
    rows, columns = COLUMNS[size]
    return draw(rows, columns // REPEATS[size]).repeat(1, REPEATS[size])


def inputs(op: str, size: str, draw: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """Give the input, rows of unlike means and scales, and the other arguments."""
    if op == "group_norm":
        return draw(2, 6, 50), {"num_groups": 3, "weight": draw(6), "bias": draw(6), "eps": 1e-5}
    if op == "batch_norm":
        running = {"running_mean": draw(5), "running_var": draw(5).abs()}
        others = {"weight": draw(5), "bias": draw(5), "training": True, "momentum": 0.1, "eps": 1e-5}
        return draw(4, 5, 90), running | others
    rows, columns = COLUMNS[size]
    whole = (columns,)
    if size in REPEATS:  # and no weight
        value = repeated(size, draw)
        return value, {"dim": -1} if "softmax" in op else {"normalized_shape": whole, "eps": 1e-5}
    scales, means = torch.tensor([[1.0], [0.01], [30.0]]), torch.tensor([[0.0], [1.0], [-50.0]])
    value = draw(rows, columns) * scales[:rows] + means[:rows]
    if "softmax" in op:
        return value, {"dim": -1}
    given = {"normalized_shape": whole, "weight": draw(columns), "eps": 1e-5}
    return value, given | ({"bias": draw(columns)} if op == "layer_norm" else {})
