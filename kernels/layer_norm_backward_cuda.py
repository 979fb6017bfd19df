"""The backward of layer normalization in CUDA C++, deterministic, for any number of rows and columns.

This is where the five published steps (layer_norm_backward_published_*_cuda.py) lead once their defects are
mended: a block handles many rows and keeps its part of the weight's and bias's gradients in registers, as in
the last step, but hands the parts to a second kernel instead of adding them atomically. Sums are in float
(double for double), every stride is read as it is, and grad_input is written, not added to.
"""

from pathlib import Path

import torch

from verifier import Domain, Source, Trees, load, source, subject, tree

SOURCE = Source(
    title="An article on the LayerNorm backward in CUDA, in five steps",
    url="https://zhuanlan.zhihu.com/p/694974164",
    changed="every stride, a missing weight, sums in float, parts joined in a fixed order, dx written",
)

tiers = load(Path(__file__).with_name("row_norm_skeleton_cuda.py")).module
KERNELS = source(__file__)

CACHED_THREADS = 512
CACHED_BYTES = 64  # that a thread keeps of each of five arrays: 80 of its 128 registers
STREAMED_THREADS = 1024
PARTS = 256  # blocks of 512 threads or more, whatever the device, so that the bits do not depend on it
JOIN, TURNS = 32, 4  # lanes that share the parts of a column in the second kernel, and sums of each lane


def cached_values(dtype):
    """Return how many columns a thread keeps in registers at most."""
    return CACHED_BYTES // tiers.compute_dtype(dtype).itemsize


def row_layout(columns, dtype):
    """Return (pack, threads, packs per thread); 0 packs per thread: the row does not fit in registers."""
    pack = next(p for p in (4, 2, 1) if columns % p == 0 and p * dtype.itemsize <= tiers.VECTOR_BYTES)
    packs = columns // pack
    if columns > CACHED_THREADS * cached_values(dtype):
        return pack, STREAMED_THREADS, 0
    threads = min(CACHED_THREADS, max(tiers.WARP, 1 << (packs - 1).bit_length()))
    return pack, threads, 1 << (-(-packs // threads) - 1).bit_length()


def row_additions(columns):
    """Return the most additions that an element meets in a sum over its row."""
    depths = []
    for dtype in (torch.float32, torch.float64):
        pack, threads, _ = row_layout(columns, dtype)
        in_thread = -(-columns // (pack * threads)) * pack - 1
        busy = min(threads, columns // pack)  # threads without a column add nothing
        depths.append(in_thread + (busy - 1).bit_length())
    return max(depths)


def rows_per_part(rows, threads):
    """Return how many consecutive rows one block takes; small blocks take fewer, and there are more."""
    return -(-rows // (PARTS * max(1, CACHED_THREADS // threads)))


def column_additions(rows):
    """Return the most additions that a row meets on its way into grad_weight or grad_bias."""
    sizes = [tiers.WARP << k for k in range((CACHED_THREADS // tiers.WARP).bit_length())]
    return max(_column_additions(rows, rows_per_part(rows, threads)) for threads in sizes)


def _column_additions(rows, run):
    parts = -(-rows // run)
    in_turn = -(-parts // (JOIN * TURNS)) - 1
    joins = (TURNS - 1).bit_length() + (JOIN - 1).bit_length()
    return min(run - 1 + in_turn + joins, rows - 1)


def gradients(grad_output, input, weight, mean, rstd, *, columns=None, dtype=None):
    """Return (grad_input, grad_weight, grad_bias); grad_weight is None if weight is.

    grad_output, input: (..., columns), any strides; mean, rstd: (rows,), in the compute dtype.
    columns are the elements of weight or, without one, of a row of mean; who has no rows says how many.
    dtype: of weight and bias and their gradients; None: that of weight, or of the input without one.
    """
    dtype = dtype or (input if weight is None else weight).dtype
    rows = mean.numel()
    if columns is None:
        columns = input.numel() // rows if rows else (input.shape[-1] if weight is None else weight.numel())
    grad_input = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    grad_weight, grad_bias = (
        torch.empty(columns, dtype=dtype, device=input.device) for _ in range(2)
    )  # fmt: skip
    if rows == 0 or columns == 0:
        grad_weight, grad_bias = grad_weight.zero_(), grad_bias.zero_()
    else:
        _launch(grad_output, input, weight, mean, rstd, (grad_input, grad_weight, grad_bias), rows, columns)
    return grad_input, None if weight is None else grad_weight, grad_bias


def _launch(grad_output, input, weight, mean, rstd, results, rows, columns):
    dy, x = tiers.as_rows(grad_output, columns), tiers.as_rows(input, columns)
    w = None if weight is None else weight.reshape(columns)
    pack, threads, packs_per_thread = row_layout(columns, input.dtype)
    run = rows_per_part(rows, threads)
    parts = -(-rows // run)
    buffers = [torch.empty(parts, columns, dtype=mean.dtype, device=x.device) for _ in range(2)]
    vector = tiers.vectorises(tiers.TierPlan(tier="", pack=pack, width=threads), dy, x, w)
    grad_input, grad_weight, grad_bias = results
    dtypes = x.dtype, grad_weight.dtype
    if packs_per_thread:
        kernel = KERNELS.kernel("layer_norm_backward_cached", *dtypes, pack, vector, packs_per_thread)
    else:
        kernel = KERNELS.kernel("layer_norm_backward_streamed", *dtypes, pack, vector)
    statistics = (mean.contiguous(), rstd.contiguous())
    kernel[parts, threads](
        *(dy, *dy.stride(), x, *x.stride()),
        *(w, 0 if w is None else w.stride(0), *statistics),
        *(grad_input, *buffers, rows, columns, run),
    )
    join = KERNELS.kernel("join_parts", grad_weight.dtype, mean.dtype)
    join[-(-columns // JOIN), (JOIN, JOIN)](*buffers, grad_weight, grad_bias, parts, columns)


@subject(
    op="layer_norm_backward",
    language="cuda",
    source=SOURCE,
    formula="canonical",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=Trees(row_gradients=tree(depth=row_additions), columns=tree(depth=column_additions)),
    mean_contraction="none",
    divide_by_n="division",
    domain=Domain(parameter_dtypes=tiers.PARAMETER_DTYPES),
    guarantees={"determinism", "layouts", "large_offsets"},
    returns=("grad_input", "grad_weight", "grad_bias"),
)
def layer_norm_backward_cuda(grad_output, input, weight=None, *, mean, rstd):
    """Gradients of layer normalization in CUDA C++, deterministic, with sums in float."""
    if input.dtype not in tiers.DTYPES or grad_output.dtype != input.dtype:
        raise ValueError(
            f"layer_norm_backward takes one floating dtype, not {grad_output.dtype} and {input.dtype}"
        )
    if weight is not None and weight.dtype not in {input.dtype, torch.float32}:
        raise ValueError(f"weight is {weight.dtype}; beside {input.dtype} it must be that or float32")
    compute = tiers.compute_dtype(input.dtype)
    if mean.dtype != compute or rstd.dtype != compute:
        raise ValueError(f"mean and rstd of a {input.dtype} input must be {compute}, not {mean.dtype}")
    if grad_output.shape != input.shape or mean.numel() != rstd.numel():
        raise ValueError("grad_output must have the shape of input, and mean that of rstd")
    grad_input, grad_weight, grad_bias = gradients(grad_output, input, weight, mean, rstd)
    if weight is not None:
        grad_weight, grad_bias = grad_weight.reshape(weight.shape), grad_bias.reshape(weight.shape)
    return grad_input, grad_weight, grad_bias
