"""Kernels of op 'unknown' with logarithms: of a sum, in two bases, of every element, and of a wrong sum."""

import torch
import triton
import triton.language as tl

from verifier import subject


def less_logarithm(input, weight):
    return weight * (input - torch.log(input.exp().sum(-1, keepdim=True)))


def softplus(input, weight):
    return weight * torch.log(1 + torch.exp(input))


@triton.jit
def _forward(x, w, y, columns, HOW: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=float("-inf")).to(tl.float32)
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    top = tl.max(value, axis=0)
    total = tl.sum(tl.exp(value - top), axis=0)
    if HOW == "every":
        out = weight * tl.log(1.0 + tl.exp(value))
    elif HOW == "binary":
        out = weight * (value - (top + 0.69314718056 * tl.log2(total)))
    elif HOW == "wrong":
        out = weight * (value - (top + tl.log(total * 1.00001)))
    else:
        out = weight * (value - (top + tl.log(total)))
    tl.store(y + row * columns + column, out, mask=inside)


def _run(input, weight, how):
    x, w = input.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    if x.numel():
        _forward[(x.numel() // columns,)](x, w, y, columns, how, triton.next_power_of_2(columns))
    return y


SETTINGS = {
    "op": "unknown",
    "language": "triton",
    "dtypes": ("float16", "bfloat16", "float32"),
    "differentiable": False,
}


@subject(specification=less_logarithm, **SETTINGS)
def natural(input, weight):
    return _run(input, weight, "natural")


@subject(specification=less_logarithm, **SETTINGS)
def binary(input, weight):
    return _run(input, weight, "binary")


@subject(specification=less_logarithm, **SETTINGS)
def wrong(input, weight):
    return _run(input, weight, "wrong")


@subject(specification=softplus, **SETTINGS)
def every(input, weight):
    return _run(input, weight, "every")
