"""What benchmarks/kernels.py measures: the published grids, their bytes, and the published figures."""

from __future__ import annotations

from dataclasses import dataclass

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of an element."""
STATISTIC = 4
"""Bytes of a saved mean or rstd: float32 for all dtypes measured here."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One point of a grid: an op in one direction on `rows` x `columns` elements.

    coarse: measured first, and with torch.compile, whose compiler takes seconds a point.
    image: (samples, channels, height, width) where the op takes images; rows x columns is its matrix.
    """

    system: str
    op: str
    direction: str
    dtype: str
    rows: int
    columns: int
    coarse: bool = False
    image: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the point in words."""
        return f"{self.system} {self.op} {self.direction} {self.dtype} {self.rows} x {self.columns}"


def least_bytes(work: Work) -> int:
    """Return the bytes that any implementation has to move: every tensor once, statistics and parameters too.

    Forward: input (and residual) read, output written. Backward: input (or output, for softmax) and
    grad_output read, grad_input written. Parameters, their gradients and the row statistics count once each.
    """
    size = SIZES[work.dtype]
    parameters, statistics, vector = _extras(work)
    rest = statistics * work.rows * STATISTIC
    if work.direction == "forward":
        return headline_bytes(work) + parameters * vector * size + rest
    gradients = parameters
    read = 1 if parameters else 0  # the weight; a bias is not read
    return headline_bytes(work) + (read + gradients) * vector * size + rest


def headline_bytes(work: Work) -> int:
    """Return the bytes by which the tutorials count: 2 tensors forward, 3 backward, and nothing else.

    A sum of two tensors that is normalized in the same kernel reads one more.
    """
    tensors = 2 if work.direction == "forward" and work.op != "add_layer_norm" else 3
    return tensors * work.rows * work.columns * SIZES[work.dtype]


def _extras(work: Work) -> tuple[int, int, int]:
    """Return how many parameters and row statistics the op has, and the elements of a parameter."""
    if "softmax" in work.op:
        return 0, 0, 0
    if work.op == "rms_norm":
        return 1, 1, work.columns
    return 2, 2, work.image[1] if work.image else work.columns


def _both(**fixed: object) -> list[Work]:
    return [Work(direction=d, **fixed) for d in ("forward", "backward")]  # type: ignore[arg-type]


def first() -> list[Work]:
    """S1, the Triton tutorial: M = 4096, fp16, 10 of its 30 widths N = 512 k, the first and last included."""
    coarse = {2, 8, 16, 31}
    return [
        work
        for k in (2, 4, 6, 8, 12, 16, 20, 24, 28, 31)
        for work in _both(
            system="S1", op="layer_norm", dtype="float16", rows=4096, columns=512 * k, coarse=k in coarse
        )
    ]


def second() -> list[Work]:
    """S2, the norm series: M 128..4096 x N 256..8192 for the norms over rows; images for the others."""
    points = []
    for op in ("layer_norm", "rms_norm"):
        for dtype in ("float16", "float32"):
            for rows in (128, 512, 2048, 4096):
                for columns in (256, 1024, 2048, 8192):
                    coarse = rows == 4096 and columns in {1024, 8192}
                    shape = {"rows": rows, "columns": columns, "coarse": coarse}
                    points += _both(system="S2", op=op, dtype=dtype, **shape)
    for dtype in ("float16", "float32"):
        image = (32, 256, 28, 28)
        rest = {"system": "S2", "dtype": dtype, "image": image, "coarse": True}
        points += _both(op="batch_norm", rows=256, columns=32 * 28 * 28, **rest)
        points += _both(op="group_norm", rows=32 * 32, columns=8 * 28 * 28, **rest)
    return points


def third() -> list[Work]:
    """S3, OneFlow: 49152 rows, N 32..32768, half and float; softmax and log-softmax beside the norm.

    Its fused load is measured by `add_layer_norm`, the forward norm of input + residual.
    """
    points = []
    for dtype in ("float16", "float32"):
        for power in range(5, 16):
            fixed = {"system": "S3", "op": "add_layer_norm", "direction": "forward", "dtype": dtype}
            points.append(Work(rows=49152, columns=2**power, coarse=power in {6, 10, 12}, **fixed))
    for op in ("layer_norm", "softmax", "log_softmax"):
        for dtype in ("float16", "float32"):
            for power in range(5, 16):
                shape = {"rows": 49152, "columns": 2**power, "coarse": power in {6, 10, 12}}
                points += _both(system="S3", op=op, dtype=dtype, **shape)
    return points


def fourth() -> list[Work]:
    """S4, the five steps of a CUDA backward: 16 x 64 rows of 2048, fp32."""
    shape = {"rows": 1024, "columns": 2048, "dtype": "float32", "coarse": True}
    return [Work(system="S4", op="layer_norm_backward", direction="backward", **shape)]


GRIDS = {"S1": first, "S2": second, "S3": third, "S4": fourth}


def points(systems: tuple[str, ...]) -> list[Work]:
    """Return the points of some grids: coarse ones of all grids first, so that a short run sees them all."""
    every = [work for name in systems for work in GRIDS[name]()]
    by_turn: dict[str, list[Work]] = {}
    for work in every:
        by_turn.setdefault(f"{work.system} {work.op} {work.dtype}", []).append(work)
    fine = [work for work in _in_turn(list(by_turn.values())) if not work.coarse]
    return [work for work in every if work.coarse] + fine


def _in_turn(queues: list[list[Work]]) -> list[Work]:
    """Take from each queue in turn."""
    longest = max(map(len, queues), default=0)
    return [queue[i] for i in range(longest) for queue in queues if i < len(queue)]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A headline figure of a document, on its own hardware, and the grid that the document shows."""

    system: str
    grid: str
    claim: str
    source: str


PUBLISHED = (
    Published(
        system="S1",
        grid="layer norm backward, fp16, M = 4096, N = 512 k for k = 2 ... 31 (30 widths)",
        claim="layer norm backward, fp16, M = 4096: 300 to 565 GB/s for Triton, about 260 to 303 for torch, "
        "276 to 338 for apex (GB/s = 3 tensors / time)",
        source="Triton tutorial Layer Normalization, older page",
    ),
    Published(
        system="S2",
        grid="norms over rows, M 128 ... 4096, N 256 ... 8192",
        claim="RMSNorm forward in Triton against torch: 4 to 10 times in fp16, 2 to 4 times in fp32",
        source="the norm series (PyTorch, Triton, CUDA)",
    ),
    Published(
        system="S3",
        grid="layer norm forward, 49152 rows, N 32 ... 32768",
        claim="layer norm forward, 49152 rows: ahead of apex (half) and torch (float) at every N from 32 to "
        "32768",
        source="OneFlow, How to implement an efficient LayerNorm CUDA kernel",
    ),
    Published(
        system="S4",
        grid="16 x 64 rows of 2048, fp32",
        claim="cycles, fp32, 16 x 64 x 2048 on an A100: v1 7,482,424; v2 51,740; v3 53,976; v4 98,369 "
        "(v1 / v2 = 145, v3 / v2 = 1.04, v4 / v2 = 1.90)",
        source="LayerNorm backward in CUDA, five steps",
    ),
)
