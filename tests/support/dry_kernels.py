"""RMS norms in Triton whose wrappers make dry runs hard, and one that turns wrong at an odd width."""

import time

import torch
import triton
import triton.language as tl

from verifier import Domain, subject

DECLARED = {
    "op": "rms_norm",
    "language": "triton",
    "variance": "rms",
    "dtypes": ("float32",),
    "differentiable": False,
}


@triton.jit
def _usual(x, y, w, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (as launched)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0)
    rstd = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    weight = tl.load(w + column, mask=inside, other=0.0)
    tl.store(y + row * columns + column, value * rstd * weight, mask=inside)


@triton.jit
def _without_weight(x, y, w, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (as launched)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0)
    rstd = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    tl.store(y + row * columns + column, value * rstd, mask=inside)


def _launched(kernel, input, weight, eps):
    x = input.reshape(-1, input.shape[-1]).contiguous()
    y = torch.empty_like(x)
    if x.numel():
        block = triton.next_power_of_2(x.shape[1])
        kernel[(x.shape[0],)](x, y, weight.contiguous(), x.shape[1], eps, BLOCK=block)
    return y.reshape(input.shape)


@subject(**DECLARED)
def right(input, weight, eps=1e-6):
    return _launched(_usual, input, weight, eps)


@subject(**DECLARED)
def odd_width(input, weight, eps=1e-6):
    kernel = _without_weight if input.shape[-1] % 96 == 0 else _usual
    return _launched(kernel, input, weight, eps)


@subject(**DECLARED)
def odd_number(input, weight, eps=1e-6):
    if input.shape[-1] == 5 * 256:
        eps += 0.125
    return _launched(_usual, input, weight, eps)


@triton.jit
def _many(x, y, w, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (as launched)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0)
    rstd = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    weight = tl.load(w + column, mask=inside, other=0.0)
    if tl.num_programs(0) > MANY:
        rstd *= 1.001
    tl.store(y + row * columns + column, value * rstd * weight, mask=inside)


MANY = tl.constexpr(700)


@subject(**DECLARED)
def odd_many(input, weight, eps=1e-6):
    return _launched(_many, input, weight, eps)


@subject(**DECLARED)
def reads_numbers(input, weight, eps=1e-6):
    if weight.abs().max().item() > 1e30:
        raise ValueError("weight is too large")
    return _launched(_usual, input, weight, eps)


@subject(**DECLARED)
def hangs(input, weight, eps=1e-6):
    while input.device.type == "cuda" and input.shape[-1] > 20000:
        time.sleep(0.01)
    return _launched(_usual, input, weight, eps)


@subject(**DECLARED, domain=Domain(max_columns=200))
def refuses(input, weight, eps=1e-6):
    if input.shape[-1] > 200:
        raise ValueError("at most 200 columns")
    return _launched(_usual, input, weight, eps)


@subject(**DECLARED)
def fails_in_long_rows(input, weight, eps=1e-6):
    if input.shape[-1] > 40_000:
        return _launched(_usual, input, weight, {}["eps"])
    return _launched(_usual, input, weight, eps)


@subject(**DECLARED)
def launches_nothing(input, weight, eps=1e-6):
    return input / (input.square().mean(-1, keepdim=True) + eps).sqrt() * weight


BUFFERS = {}


@subject(**DECLARED)
def keeps_tensors(input, weight, eps=1e-6):
    """Keeps what it computes from shapes; a tensor of a dry run must never meet a real one."""
    key = input.shape[-1]
    if key not in BUFFERS:
        BUFFERS[key] = torch.ones(key, device=input.device)
    return _launched(_usual, input, weight * BUFFERS[key], eps)
