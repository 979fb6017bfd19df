"""Dynamic tanh in Triton, forward and backward, for any layout: tanh(alpha * x) * weight + bias.

Forward: one program a tile of a row. The hyperbolic tangent is that of libdevice, within 2 ulp for every
argument, near 0 too, where 1 - 2 / (exp(2 z) + 1) has lost its digits.
Backward: a program takes a fixed chunk of rows of one tile of columns and keeps its parts of the three sums
in fp32: those of weight and bias by column, that of alpha by lane, joined at its end. A second kernel joins
the parts in a fixed order, so that there is no lock and no atomic, and the bits do not change between runs.

An element that is NaN comes out as NaN, and no other one. Beyond |x| = 1e15 a product with alpha may overflow
in fp32: the kernel makes no promise there.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from verifier import Domain, Source, Trees, load, subject, tile, tree

SOURCE = Source(
    title="Transformers without Normalization (DyT)",
    author="Jiachen Zhu, Xinlei Chen, Kaiming He, Yann LeCun, Zhuang Liu",
    url="https://arxiv.org/abs/2503.10622",
    changed="written anew as kernels: every stride and rank, a missing weight or bias, 64-bit offsets, "
    "rows of any length, an empty batch, gradients in a fixed order",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module

DTYPES = ("float16", "bfloat16", "float32")
BLOCK = 1024  # columns of a tile at most
WARPS = 4


@triton.jit
def _forward(
    x, y, alpha, weight, bias, x_row, x_column, weight_step, bias_step, columns,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    out = libdevice.tanh(tl.load(alpha).to(tl.float32) * value)
    if weight is not None:
        out *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        out += tl.load(bias + column * bias_step, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, out, mask=inside)


@triton.jit(do_not_specialize=["rows", "chunk"])
def _backward(
    dx, dy, x, alpha, weight, parts_da, parts_dw, parts_db, dy_row, dy_column, x_row, x_column, weight_step,
    rows, columns, chunk, BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes `chunk` rows of one tile of columns: their dx, and one part of each sum."""
    program = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(alpha).to(tl.float32)
    if weight is not None:
        w = tl.load(weight + column * weight_step, mask=inside, other=0.0).to(tl.float32)
    part_da = tl.zeros((BLOCK,), tl.float32)
    part_dw = tl.zeros((BLOCK,), tl.float32)
    part_db = tl.zeros((BLOCK,), tl.float32)
    for row in range(program * chunk, tl.minimum((program + 1) * chunk, rows)):
        value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(dy + row * dy_row + column * dy_column, mask=inside, other=0.0).to(tl.float32)
        curve = libdevice.tanh(scale * value)
        through = (1.0 - curve * curve) * d
        if weight is not None:
            through *= w
        tl.store(dx + row * columns + column, through * scale, mask=inside)
        part_da += through * value
        part_dw += d * curve
        part_db += d
    if parts_da is not None:
        tl.store(parts_da + program * tl.num_programs(0) + tl.program_id(0), tl.sum(part_da, axis=0))
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, part_dw, mask=inside)
    if parts_db is not None:
        tl.store(parts_db + program * columns + column, part_db, mask=inside)


def _tile(columns):
    return min(BLOCK, triton.next_power_of_2(columns))


class _DynamicTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, alpha, weight, bias, columns):
        rows = input.numel() // columns if columns else 0
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        x = input.reshape(rows, columns)  # a view where the strides allow it
        w, b = (None if v is None else v.reshape(columns) for v in (weight, bias))
        if rows:
            block = _tile(columns)
            with skeleton.on(input):
                _forward[(rows, triton.cdiv(columns, block))](
                    x, output, alpha, w, b, *x.stride(), skeleton.step(w), skeleton.step(b), columns,
                    BLOCK=block, num_warps=WARPS,
                )  # fmt: skip
        ctx.save_for_backward(input, alpha, weight, bias)
        ctx.columns = columns
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        saved, alpha, weight, bias = ctx.saved_tensors
        columns = ctx.columns
        rows = saved.numel() // columns if columns else 0
        grad_input = torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)
        sums = [
            skeleton.sum_over(rows, v.shape, v.dtype, saved.device) if needed else None
            for v, needed in zip((alpha, weight, bias), ctx.needs_input_grad[1:4], strict=True)
        ]
        if not rows:
            return grad_input, *sums, None
        x, dy = saved.reshape(rows, columns), grad_output.reshape(rows, columns)
        w = None if weight is None else weight.reshape(columns)
        programs, chunk = skeleton.chunks(rows, columns)
        block = _tile(columns)
        tiles = triton.cdiv(columns, block)
        widths = (tiles, columns, columns)
        parts = [
            None if one is None else torch.empty(programs, width, dtype=torch.float32, device=x.device)
            for one, width in zip(sums, widths, strict=True)
        ]
        with skeleton.on(x):
            _backward[(tiles, programs)](
                grad_input, dy, x, alpha, w, *parts, *dy.stride(), *x.stride(), skeleton.step(w),
                rows, columns, chunk, BLOCK=block, num_warps=WARPS,
            )  # fmt: skip
            alpha_sum, *column_sums = zip(parts, sums, strict=True)
            skeleton.join_parts([alpha_sum], programs * tiles, 1)
            skeleton.join_parts(column_sums, programs, columns)
        return grad_input, *sums, None


def _row_depth(columns):
    """Additions that alpha's parts of a row meet at most: in a tile, and in the join of so many tiles."""
    block = min(BLOCK, triton.next_power_of_2(max(columns, 1)))
    per_part = skeleton.CHUNKS[1] // skeleton.MANY[0]
    return tile(block=block, threads=32 * WARPS).depth(block) + (triton.cdiv(columns, block) - 1) * per_part


@subject(
    op="dynamic_tanh",
    language="triton",
    source=SOURCE,
    formula="canonical",
    accumulates="float32",
    dtypes=DTYPES,
    trees=Trees(row_gradients=tree(depth=_row_depth), columns=tree(depth=skeleton.column_depth)),
    # The product with alpha stays finite.
    domain=Domain(max_abs=1e15, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    guarantees=skeleton.GUARANTEES,
)
def dynamic_tanh_triton(input, normalized_shape, alpha, weight=None, bias=None):
    columns = skeleton.normalized_columns("dynamic_tanh", input, normalized_shape, weight=weight, bias=bias)
    skeleton.refuse_vectors(input, (1,), alpha=alpha)
    if str(input.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"dynamic_tanh takes {', '.join(DTYPES)}, not {input.dtype}.")
    return _DynamicTanh.apply(input, alpha, weight, bias, columns)
