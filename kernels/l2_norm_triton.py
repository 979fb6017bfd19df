"""Rows of length one in Triton, one program a row, forward and backward, for any layout.

Forward: every lane adds its squares in fp32, the lanes are joined, and the row is multiplied by the
reciprocal root of sum + eps.
Backward: the row is normalized again from the saved reciprocal root, in fp32, so that no rounded output
enters the gradient; sums are in a fixed order.

A row that holds NaN comes out as NaN. Beyond |x| = 1e15 the sum of squares may overflow in fp32: the kernel
makes no promise there.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="flash-linear-attention, l2norm",
    author="Songlin Yang, Yu Zhang, Zhiyuan Li",
    url="https://github.com/fla-org/flash-linear-attention",
    licence="MIT",
    changed="written anew: every stride and rank, rows of any length, 64-bit offsets, an empty batch, a "
    "backward that does not read the rounded output",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, root = skeleton.divide, skeleton.root


@triton.jit
def _forward(x, y, rstds, x_row, x_column, columns, eps, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    y += row * columns
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    # First sweep: the sum of squares. Masked lanes are zeros, which it does not see.
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
        lanes += value * value
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(tl.sum(lanes, axis=0) + eps))
    tl.store(rstds + row, rstd)
    # Second sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        tl.store(y + column, value * rstd, mask=inside)


@triton.jit
def _backward(
    dx, dy, x, rstds, dy_row, dy_column, x_row, x_column, columns,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row of any width: dx = (dy - y * sum(dy * y)) * rstd."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    dy += row * dy_row
    rstd = tl.load(rstds + row)
    lanes = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        out = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE) * rstd
        lanes += out * tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
    inner = tl.sum(lanes, axis=0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        out = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE) * rstd
        d = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(ACCUMULATE)
        tl.store(dx + row * columns + column, (d - out * inner) * rstd, mask=inside)


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, columns, eps):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        x = input.reshape(rows, columns)  # a view where the strides allow it
        if rows:
            block, warps = skeleton.row_tile(columns, input.dtype)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, output, rstd, *x.stride(), columns, skeleton.scalar(eps, input),
                    BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, rstd)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        saved, rstd = ctx.saved_tensors
        rows = rstd.numel()
        grad_input = torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)
        if rows:
            columns = saved.numel() // rows
            x, dy = saved.reshape(rows, columns), grad_output.reshape(rows, columns)
            block, warps = skeleton.row_tile(columns, saved.dtype)
            with skeleton.on(saved):
                _backward[(rows,)](
                    grad_input, dy, x, rstd, *dy.stride(), *x.stride(), columns,
                    BLOCK=block, ACCUMULATE=skeleton.accumulator(saved.dtype)[1], num_warps=warps,
                )  # fmt: skip
        return grad_input, None, None


@subject(
    op="l2_norm",
    language="triton",
    source=SOURCE,
    formula="canonical",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    # The sum of squares stays finite.
    domain=Domain(max_abs=1e15),
    guarantees=skeleton.GUARANTEES,
)
def l2_norm_triton(input, normalized_shape, eps=1e-6):
    columns = skeleton.normalized_columns("l2_norm", input, normalized_shape)
    return _L2Norm.apply(input, columns, float(eps))
