"""Right kernels that write their formula in an unusual way, and ways to return what is no result."""

import torch
import triton
import triton.language as tl

from verifier import subject

SETTINGS = {"language": "triton", "dtypes": ("float32", "float16"), "differentiable": False}


def launched(kernel, input, *arguments):
    """Run a kernel of one program a row on a tensor; return what it wrote."""
    x = input.contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        kernel[(x.numel() // columns,)](x, y, columns, *arguments, triton.next_power_of_2(columns))
    return y


# -- functions that no field has -------------------------------------------------------------------------


@triton.jit
def _sigmoid(x, y, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    tangent = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [0.5 * value], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(y + row * columns + column, 0.5 * tangent + 0.5, mask=inside)


@triton.jit
def _root_mean_square(x, y, columns, eps, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    square = tl.sum(value * value, axis=0) / columns + eps
    tl.store(y + row * columns + column, value * tl.exp2(-0.5 * tl.log2(square)), mask=inside)


@subject(op="unknown", specification=lambda input: torch.sigmoid(input), **SETTINGS)
def sigmoid_by_tangent(input):
    return launched(_sigmoid, input)


@subject(op="rms_norm", variance="rms", **SETTINGS)
def root_by_logarithm(input, eps):
    return launched(_root_mean_square, input, eps)
