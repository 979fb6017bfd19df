"""What norms with a gate share in Triton, whether it comes before the norm or after: no subject.

Forward: a program takes one row. Backward: what is gated and normalized is computed again in fp32 from the
input, the gate and the row's saved statistics. A program takes a fixed chunk of rows and keeps its part of
the weight's and bias's gradients in fp32; a last kernel joins the parts in a fixed order, so there is no lock
and no atomic, and the bits do not change between runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from verifier import load

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, step = skeleton.divide, skeleton.step

DTYPES = ("float16", "bfloat16", "float32")

# ---- Arithmetic ----


@triton.jit
def logistic(gate):
    # Where the exponential overflows the quotient is 0, which it is to within the smallest numbers.
    return divide(tl.full(gate.shape, 1.0, gate.dtype), 1.0 + tl.exp(-gate))


@triton.jit
def affine(value, weight, bias, column, inside, weight_step, bias_step, ACCUMULATE: tl.constexpr):
    if weight is not None:
        value *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    if bias is not None:
        value += tl.load(bias + column * bias_step, mask=inside, other=0.0).to(ACCUMULATE)
    return value


@triton.jit
def gate_slope(gate, sigmoid, SILU: tl.constexpr):
    """The derivative of the gate's function, gate * sigmoid(gate) or sigmoid(gate)."""
    of_sigmoid = sigmoid * (1.0 - sigmoid)
    return sigmoid + gate * of_sigmoid if SILU else of_sigmoid


# ---- Launches ----


@dataclass(frozen=True, kw_only=True)
class GateDesign:
    """What tells a norm whose gate comes first from one whose gate comes last.

    forward: the kernel of one row's output and statistics; MEAN finds the row's mean, None of a norm that
    takes none away. rows: launches what computes the gradients of input and gate from what it reads (the
    gradient of the output, input, gate, weight, statistics), and returns the parts that it has not summed
    besides; reads_bias: whether it reads the bias, too. columns: the kernel that sums the parts left.
    returns_statistics: beside the output.
    """

    forward: Any
    rows: Callable[..., list[torch.Tensor | None]]
    columns: Any
    reads_bias: bool
    returns_statistics: bool


class _NormWithGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate, weight, bias, columns, eps, mean_of, silu, design):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        mean = torch.empty_like(rstd) if mean_of else None
        x, z = input.reshape(rows, columns), gate.reshape(rows, columns)
        w, b = (None if vector is None else vector.reshape(columns) for vector in (weight, bias))
        if rows:
            block, warps = skeleton.row_tile(columns, input.dtype)
            with skeleton.on(input):
                design.forward[(rows,)](
                    x, z, output, w, b, mean, rstd, *x.stride(), *z.stride(), step(w), step(b), columns,
                    skeleton.scalar(eps, input), MEAN=mean_of, SILU=silu, BLOCK=block,
                    ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, gate, weight, bias, mean, rstd)
        ctx.silu, ctx.design = silu, design
        found = [one for one in (mean, rstd) if one is not None and design.returns_statistics]
        ctx.mark_non_differentiable(*found)
        return (output, *found) if found else output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, *_):
        x, gate, weight, bias, mean, rstd = ctx.saved_tensors
        rows = rstd.numel()
        columns = x.numel() // rows if rows else 0
        gradients = [
            torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if needed else None
            for tensor, needed in zip((x, gate), ctx.needs_input_grad[:2], strict=True)
        ]
        parameters = [
            skeleton.sum_over(rows, like.shape, like.dtype, like.device) if needed else None
            for like, needed in zip((weight, bias), ctx.needs_input_grad[2:4], strict=True)
        ]
        if rows:
            tensors = [tensor.reshape(rows, columns) for tensor in (grad_output, x, gate)]
            vectors = [None if vector is None else vector.reshape(columns) for vector in (weight, bias)]
            with skeleton.on(x):
                _launch_backward(gradients, parameters, tensors, vectors, mean, rstd, ctx.silu, ctx.design)
        return *gradients, *parameters, None, None, None, None, None


def _launch_backward(gradients, parameters, tensors, vectors, mean, rstd, silu, design):
    rows, columns = tensors[1].shape
    dtype = tensors[1].dtype
    block, warps = skeleton.row_tile(columns, dtype)
    programs, chunk = skeleton.chunks(rows, columns)
    parts = [None if out is None else rstd.new_empty(programs, columns) for out in parameters]
    read = vectors if design.reads_bias else vectors[:1]
    strides = [stride for tensor in tensors for stride in tensor.stride()]
    constants = {"CENTRED": mean is not None, "SILU": silu, "ACCUMULATE": skeleton.accumulator(dtype)[1]}
    left = design.rows(
        gradients, [*tensors, *read, mean, rstd], parts, [*strides, *map(step, read)],
        rows, columns, programs, chunk, {**constants, "BLOCK": block, "num_warps": warps},
    )  # fmt: skip
    if any(part is not None for part in left):
        design.columns[(triton.cdiv(columns, 128), programs)](
            *tensors, mean, rstd, *left, *strides, rows, columns, chunk, **constants, BLOCK=128,
        )  # fmt: skip
    skeleton.join_parts(zip(parts, parameters, strict=True), programs, columns)


def norm_with_gate(op, input, gate, normalized_shape, weight, bias, eps, *, mean_of, silu, design):
    """Normalizes over the last dimensions, by a design; refuses before the first launch what it cannot take.

    mean_of: what the design's forward takes as MEAN.
    """
    columns = skeleton.normalized_columns(op, input, normalized_shape, weight=weight, bias=bias)
    if gate.shape != input.shape or gate.dtype != input.dtype or gate.device != input.device:
        raise ValueError(f"{op} takes a gate of the shape, dtype and device of input.")
    return _NormWithGate.apply(input, gate, weight, bias, columns, float(eps), mean_of, silu, design)
