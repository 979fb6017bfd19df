"""Layer normalization of one Triton program a row, the whole row in registers, forward and backward.

It is the LayerNorm of the norm series mended: two-pass in registers, mean and rstd stored, and what was
left out: strides of every tensor, any rank, a missing weight or bias, 64-bit offsets, and the backward.
The series tunes the number of warps on the device; here it follows from the row's length, so that the bits
are the same everywhere. Rows beyond the largest block are refused.
"""

import contextlib
import math

import torch
import triton
import triton.language as tl

from verifier import Domain, Trees, subject, tile, tree

DTYPES = ("float16", "bfloat16", "float32", "float64")
CHUNKS = (128, 1024)  # programs of the backward: enough to fill a device, few enough to keep the parts small
LONGEST_ROW = 2**16  # one block; Triton itself ends at 2^20, where nothing is left in registers
PARTS = 32  # parts that the last kernel joins in one step


@triton.jit
def _divide(numerator, denominator):
    # Triton's `/` is an approximation in fp32, and ptxas may contract it with what follows.
    return numerator / denominator if numerator.dtype == tl.float64 else tl.div_rn(numerator, denominator)


@triton.jit
def _root(value):
    return tl.sqrt(value) if value.dtype == tl.float64 else tl.sqrt_rn(value)


@triton.jit
def _forward(
    x, y, weight, bias, means, rstds, x_row, x_column, weight_step, bias_step, columns, eps,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
    mean = _divide(tl.sum(value, axis=0), count)
    centred = tl.where(inside, value - mean, 0.0)  # a masked lane would add mean^2
    variance = _divide(tl.sum(centred * centred, axis=0), count)
    rstd = _divide(tl.full((), 1.0, ACCUMULATE), _root(variance + eps))
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    out = centred * rstd
    if weight is not None:
        out *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    if bias is not None:
        out += tl.load(bias + column * bias_step, mask=inside, other=0.0).to(ACCUMULATE)
    tl.store(y + row * columns + column, out, mask=inside)


@triton.jit
def _backward_rows(
    dx, dy, x, weight, means, rstds, parts_dw, parts_db, dy_row, dy_column, x_row, x_column, weight_step,
    rows, columns, chunk, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows, each within one tile: their dx, and one part of dw and db."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if weight is not None:
        w = tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    part_dw = tl.zeros((BLOCK,), ACCUMULATE)
    part_db = tl.zeros((BLOCK,), ACCUMULATE)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        mean = tl.load(means + row)
        rstd = tl.load(rstds + row)
        value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        hat = tl.where(inside, (value - mean) * rstd, 0.0)
        g = d
        if weight is not None:
            g = d * w
        c1 = _divide(tl.sum(hat * g, axis=0), count)
        c2 = _divide(tl.sum(g, axis=0), count)
        tl.store(dx + row * columns + column, (g - (hat * c1 + c2)) * rstd, mask=inside)
        part_dw += d * hat
        part_db += d
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


@triton.jit
def _join(parts, out, count, columns, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Joins `count` parts of one tile of columns, always in the same order."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((PARTS, BLOCK), parts.dtype.element_ty)
    for start in range(0, count, PARTS):
        part = start + tl.arange(0, PARTS).to(tl.int64)
        inside = (part[:, None] < count) & (column[None, :] < columns)
        total += tl.load(parts + part[:, None] * columns + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, axis=0), mask=column < columns)


def _on(tensor):
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def _tile(columns):
    block = triton.next_power_of_2(columns)
    return block, min(max(block // 256, 1), 16)


def _chunks(rows, columns):
    """Programs of the backward and rows of each, from the shape alone: no device may change the bits."""
    programs = min(rows, max(CHUNKS[0], min(CHUNKS[1], 2**20 // columns)))
    chunk = triton.cdiv(rows, programs)
    return triton.cdiv(rows, chunk), chunk


def _accumulator(dtype):
    return (torch.float64, tl.float64) if dtype == torch.float64 else (torch.float32, tl.float32)


def _step(vector):
    return 0 if vector is None else vector.stride(0)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = _accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        mean = torch.empty(rows, dtype=statistics, device=input.device)
        rstd = torch.empty_like(mean)
        x = input.reshape(rows, columns)  # a view where the strides allow it
        w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
        if rows:
            if accumulate == tl.float64:
                eps = torch.full((1,), eps, dtype=torch.float64, device=input.device)
            block, warps = _tile(columns)
            with _on(input):
                _forward[(rows,)](
                    x, output, w, b, mean, rstd, *x.stride(), _step(w), _step(b), columns, eps,
                    BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, weight, mean, rstd)
        ctx.parameters = [
            None if vector is None else (vector.shape, vector.dtype) for vector in (weight, bias)
        ]
        ctx.mark_non_differentiable(mean, rstd)
        return output, mean, rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, _grad_mean, _grad_rstd):
        x, weight, mean, rstd = ctx.saved_tensors
        rows = mean.numel()
        columns = x.numel() // rows if rows else 0
        grad_input = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grad_weight, grad_bias = (
            torch.zeros(like[0], dtype=like[1], device=x.device) if needed else None
            for like, needed in zip(ctx.parameters, ctx.needs_input_grad[1:3], strict=True)
        )
        if not rows:
            return grad_input, grad_weight, grad_bias, None, None
        x, dy = x.reshape(rows, columns), grad_output.reshape(rows, columns)
        programs, chunk = _chunks(rows, columns)
        parts_dw, parts_db = (
            None if out is None else mean.new_empty(programs, columns) for out in (grad_weight, grad_bias)
        )
        with _on(x):
            w = None if weight is None else weight.reshape(columns)
            block, warps = _tile(columns)
            _backward_rows[(programs,)](
                grad_input, dy, x, w, mean, rstd, parts_dw, parts_db, *dy.stride(), *x.stride(), _step(w),
                rows, columns, chunk,
                BLOCK=block, ACCUMULATE=_accumulator(x.dtype)[1], num_warps=warps,
            )  # fmt: skip
            for parts, out in ((parts_dw, grad_weight), (parts_db, grad_bias)):
                if out is not None:
                    _join[(triton.cdiv(columns, 128),)](parts, out, programs, columns, PARTS=PARTS, BLOCK=128)
        return grad_input, grad_weight, grad_bias, None, None


def _refuse(input, normalized_shape, weight, bias):
    """Raises before the first launch what the kernels cannot take."""
    if str(input.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"layer_norm takes {', '.join(DTYPES)}, not {input.dtype}.")
    if not normalized_shape or tuple(input.shape[-len(normalized_shape) :]) != normalized_shape:
        raise ValueError(f"normalized_shape {normalized_shape} is not the end of shape {tuple(input.shape)}.")
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and tuple(vector.shape) != normalized_shape:
            raise ValueError(f"{name} has shape {tuple(vector.shape)}, expected {normalized_shape}.")
        if vector is not None and vector.device != input.device:
            raise ValueError(f"{name} is on {vector.device}, input on {input.device}.")
    if math.prod(normalized_shape) > LONGEST_ROW:
        raise ValueError(f"Rows of more than {LONGEST_ROW} columns are not supported.")


def _row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, in whichever dtype."""
    block, warps = _tile(columns)
    return tile(block=block, threads=32 * warps, element_bytes=2).depth(columns)


def _column_depth(rows):
    """Additions that a leaf of a column's sum meets at most: within its chunk, then over the parts."""
    return triton.cdiv(rows, CHUNKS[0]) - 1 + triton.cdiv(min(rows, CHUNKS[1]), PARTS) - 1 + PARTS - 1


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    dtypes=DTYPES,
    trees=Trees(
        statistics=tree(depth=_row_depth),
        row_gradients=tree(depth=_row_depth),
        columns=tree(depth=_column_depth),
    ),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3, max_columns=LONGEST_ROW),
    returns=("output", "mean", "rstd"),
    guarantees={
        "determinism",
        "batch_invariance",
        "gradgradcheck",
        "special_values",
        "layouts",
        "large_offsets",
    },
)
def layer_norm_single_block_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    normalized_shape = tuple(normalized_shape)
    _refuse(input, normalized_shape, weight, bias)
    return _LayerNorm.apply(input, weight, bias, math.prod(normalized_shape), float(eps))
