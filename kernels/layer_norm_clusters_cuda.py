"""Layer normalization in CUDA C++ of rows that one multiprocessor cannot hold: a cluster of blocks has a row.

The mean is kept as two numbers, as in layer_norm_compensated_triton.py: right to a few ulp however large it
is, forward and backward. A row is read once and written once: each block has a slice of it in registers, and
the blocks of a cluster hand each other their parts of its sums. Backward, a fixed number of clusters takes
the rows in turns and keeps its part of the weight's and bias's gradients in registers; another kernel joins
the parts in a fixed order. Clusters need compute capability 9.0.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd.function import once_differentiable

from verifier import Domain, Source, Trees, load, source, subject, tree

SOURCE = Source(
    title="Algorithms for computing the sample variance: analysis and recommendations",
    author="Tony F. Chan, Gene H. Golub, Randall J. LeVeque",
    url="https://doi.org/10.1080/00031305.1983.10483115",
    changed="our own in CUDA C++: the correction of its two-pass algorithm is kept, and subtracted as well",
)

layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_cuda.py")).module
tiers, backward_pass = layer_norm.tiers, layer_norm.backward_pass
KERNELS = source(__file__)

# ---- How a row is spread: it follows from its length and dtype alone, and so do its bits ----

THREADS = 512  # of a block, at most
FORWARD, BACKWARD = {2: 32, 4: 32, 8: 16}, {2: 16, 4: 16, 8: 16}  # values of a thread, by bytes of an element
BLOCKS = 8  # of a cluster, at most: every device with clusters takes so many
LONGEST_ROW = THREADS * BLOCKS * 16
FITTING = {1: 132, 2: 66, 4: 30, 8: 15}  # clusters of so many blocks that an H200 holds at once, a block each
RESIDENT = {2: 2, 4: 2, 8: 1}  # blocks of the forward on a multiprocessor
AHEAD = {2: 2, 4: 1, 8: 1}, {2: 3, 4: 2, 8: 1}  # rows loaded ahead, forward and backward


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How a row lies: `pack` neighbours at a time, `packs` of them in a thread, `blocks` in a cluster."""

    pack: int
    threads: int
    packs: int
    blocks: int

    @property
    def columns(self):
        """Columns that a block has room for."""
        return self.threads * self.packs * self.pack

    def additions(self, columns):
        """Return the most additions that an element of a row meets: in its thread, its warp, and of parts."""
        warps = self.blocks * self.threads // tiers.WARP
        lanes = (min(warps, tiers.WARP) - 1).bit_length()
        return min(self.packs * self.pack - 1 + 5 + -(-warps // tiers.WARP) - 1 + lanes, columns - 1)


def spread(columns, dtype, values):
    """Return how a row of `columns` lies in threads of at most `values` each."""
    pack = next(p for p in (8, 4, 2, 1) if columns % p == 0 and p * dtype.itemsize <= tiers.VECTOR_BYTES)
    packs = columns // pack
    threads = min(THREADS, max(tiers.WARP, _power_of_two(packs)))
    blocks = _power_of_two(-(-columns // (threads * values)))
    return Spread(
        pack=pack, threads=threads, packs=_power_of_two(-(-packs // (threads * blocks))), blocks=blocks
    )


def _power_of_two(number):
    return 1 << (number - 1).bit_length()


def clusters_of(rows, lies, resident=1):
    """Return how many clusters take the rows in turns; small blocks are more."""
    return min(rows, FITTING[lies.blocks] * resident * (THREADS // lies.threads))


def forward_additions(columns):
    return max(spread(columns, d, FORWARD[d.itemsize]).additions(columns) for d in tiers.DTYPES)


def backward_additions(columns):
    return max(spread(columns, d, BACKWARD[d.itemsize]).additions(columns) for d in tiers.DTYPES)


def column_additions(rows):
    """Return the most additions that a row of any length meets on its way into grad_weight or grad_bias."""
    found = []
    for clusters in (*FITTING.values(), FITTING[1] * THREADS // tiers.WARP):
        parts = min(rows, clusters)
        in_turn = -(-parts // (backward_pass.JOIN * backward_pass.TURNS)) - 1
        joins = (backward_pass.TURNS - 1).bit_length() + (backward_pass.JOIN - 1).bit_length()
        found.append(min(-(-rows // clusters) - 1 + in_turn + joins, rows - 1))
    return max(found)


# ---- Launches ----


def whole_rows(tensor, columns):
    """The matrix of rows with neighbours side by side; others are copied."""
    rows = tiers.as_rows(tensor, columns)
    return rows if columns == 1 or rows.stride(1) == 1 else rows.contiguous()


def launch(name, lies, dtypes, ahead, tensors, vectors, more, clusters, arguments):
    """Launch a kernel; tensors: whose rows are loaded ahead, vectors: of parameters; more: last constants."""
    size = dtypes[0].itemsize
    vector = lies.pack * size >= 4 and tiers.vectorises(
        lies, *tensors, *vectors
    )  # what a copy can move at once
    stages = ahead * len(tensors) * lies.columns * size if vector else 0
    constants = (lies.pack, vector, lies.threads, lies.packs, lies.blocks, ahead)
    kernel = KERNELS.kernel(name, *dtypes, *constants, *more)
    kernel[clusters * lies.blocks, lies.threads, stages](*arguments)


def normalize(input, weight, bias, columns, eps):
    """Launch the forward; returns (output, mean, rstd, high, low)."""
    rows, size = input.numel() // columns if columns else 0, input.element_size()
    output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    mean, rstd, high, low = torch.empty(
        4, rows, dtype=tiers.compute_dtype(input.dtype), device=input.device
    )  # fmt: skip
    if rows:
        x = whole_rows(input, columns)
        w, b = (None if t is None else t.reshape(columns).contiguous() for t in (weight, bias))
        lies, resident = spread(columns, input.dtype, FORWARD[size]), RESIDENT[size]
        dtypes = input.dtype, layer_norm.parameter_dtype(input, weight, bias)
        launch(
            "layer_norm_forward", lies, dtypes, AHEAD[0][size], (x,), (w, b), (resident,),
            clusters_of(rows, lies, resident),
            (x, x.stride(0), w, b, output, high, low, mean, rstd, rows, columns, float(eps)),
        )  # fmt: skip
    return output, mean, rstd, high, low


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps):
        output, mean, rstd, high, low = normalize(input, weight, bias, columns, eps)
        ctx.save_for_backward(input, weight, high, low, rstd)
        ctx.columns = columns
        ctx.shapes = [None if t is None else t.shape for t in (weight, bias)]
        ctx.dtype = layer_norm.parameter_dtype(input, weight, bias)
        ctx.mark_non_differentiable(mean, rstd)
        return output, mean, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, _grad_mean, _grad_rstd):
        saved, weight, high, low, rstd = ctx.saved_tensors
        columns, rows, size = ctx.columns, rstd.numel(), saved.element_size()
        summed = any(ctx.needs_input_grad[1:3])
        grad_input = torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)
        sums = [rstd.new_empty(columns, dtype=ctx.dtype) if summed else None for _ in ctx.shapes]
        if rows:
            x, dy = (whole_rows(t, columns) for t in (saved, grad_output))
            w = None if weight is None else weight.reshape(columns).contiguous()
            lies = spread(columns, saved.dtype, BACKWARD[size])
            clusters = clusters_of(rows, lies)
            parts = [rstd.new_empty(clusters, columns) if summed else None for _ in ctx.shapes]
            strides = (dy, dy.stride(0), x, x.stride(0))
            launch(
                "layer_norm_backward", lies, (saved.dtype, ctx.dtype), AHEAD[1][size], (x, dy), (w,), (),
                clusters, (*strides, w, high, low, rstd, grad_input, *parts, rows, columns),
            )  # fmt: skip
            if summed:
                lanes = backward_pass.JOIN
                join = KERNELS.kernel("join_parts", ctx.dtype, rstd.dtype)
                join[-(-columns // lanes), (lanes, lanes)](*parts, *sums, clusters, columns)
        elif summed:
            sums = [one.zero_() for one in sums]
        given = [
            gradient.reshape(shape) if needed else None
            for gradient, shape, needed in zip(sums, ctx.shapes, ctx.needs_input_grad[1:3], strict=True)
        ]
        return grad_input, *given, None, None


# ---- The subject ----


@subject(
    op="layer_norm",
    language="cuda",
    source=SOURCE,
    variance="two_pass_corrected_mean",
    variance_options={"corrects_mean": True},
    formula="compensated",
    clamp=True,
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=Trees(
        statistics=tree(depth=forward_additions),
        row_gradients=tree(depth=backward_additions),
        columns=tree(depth=column_additions),
    ),
    mean_contraction="none",  # the mean ends in a division
    divide_by_n="division",
    # Squares and their sums stay finite; the mean may be a million standard deviations.
    domain=Domain(
        max_abs=1e15, max_kappa=1e6, max_columns=LONGEST_ROW, parameter_dtypes=tiers.PARAMETER_DTYPES
    ),
    returns=("output", "mean", "rstd"),
    guarantees={"determinism", "batch_invariance", "layouts", "large_offsets"},
    extents=((265, 257), (67, 8193), (3, 16385)),  # more rows than clusters, of one and of two blocks
)
def layer_norm_clusters_cuda(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in CUDA C++ by clusters of blocks, with the mean as two numbers."""
    columns = layer_norm.normalized_columns(input, normalized_shape, weight, bias)
    if columns > LONGEST_ROW:
        raise ValueError(f"a row has at most {LONGEST_ROW} columns, not {columns}")
    return _LayerNorm.apply(input, weight, bias, columns, float(eps))
