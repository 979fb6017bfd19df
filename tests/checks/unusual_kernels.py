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
def _sigmoid(x, y, columns, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    tangent = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [FACTOR * value], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(y + row * columns + column, 0.5 * tangent + 0.5, mask=inside)


@triton.jit
def _root_mean_square(x, y, columns, eps, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    square = tl.sum(value * value, axis=0) / columns + eps
    tl.store(y + row * columns + column, value * tl.exp2(-0.5 * tl.log2(square)), mask=inside)


def sigmoid(input):
    return torch.sigmoid(input)


@subject(op="unknown", specification=sigmoid, **SETTINGS)
def sigmoid_by_tangent(input):
    return launched(_sigmoid, input, 0.5)


@subject(op="unknown", specification=sigmoid, **SETTINGS)
def sigmoid_by_wrong_tangent(input):
    return launched(_sigmoid, input, 0.25)


@subject(op="rms_norm", variance="rms", **SETTINGS)
def root_by_logarithm(input, eps):
    return launched(_root_mean_square, input, eps)


# -- reciprocals of other numbers than N -----------------------------------------------------------------


@triton.jit
def _in_two_steps(x, y, columns, eps, ONE: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    square = tl.sum(value * value, axis=0) * ONE * OTHER
    tl.store(y + row * columns + column, value * tl.rsqrt(square + eps), mask=inside)


@subject(op="rms_norm", variance="rms", **SETTINGS)
def shares_of_factors(input, eps):
    return launched(_in_two_steps, input, eps, 1 / 3, 3 / input.shape[-1])


@subject(op="rms_norm", variance="rms", **SETTINGS)
def shares_of_doubled_factors(input, eps):
    return launched(_in_two_steps, input, eps, -2 / 3, -1.5 / input.shape[-1])


@subject(op="rms_norm", variance="rms", **SETTINGS)
def shares_of_one_column_more(input, eps):
    return launched(_in_two_steps, input, eps, 1 / 3, 1 / (input.shape[-1] // 3 + 1))


@subject(op="rms_norm", variance="rms", **SETTINGS)
def shares_an_ulp_beside(input, eps):
    return launched(_in_two_steps, input, eps, 1 / 3 + 2.0**-25, 3 / input.shape[-1])


@triton.jit
def _welford(x, shares, y, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    mean, total = 0.0, 0.0
    for count in range(columns):
        value = tl.load(x + row * columns + count).to(tl.float32)
        beside = value - mean
        mean += beside * tl.load(shares + count)
        total += beside * (value - mean)
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    variance = total * tl.load(shares + columns - 1)
    tl.store(y + row * columns + column, (value - mean) * tl.rsqrt(variance + eps), mask=inside)


@subject(op="layer_norm", variance="welford", **SETTINGS)
def welford_by_a_table(input, eps):
    x = input.contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    shares = 1.0 / torch.arange(1, columns + 1, dtype=torch.float32)
    if x.numel():
        _welford[(x.numel() // columns,)](x, shares, y, columns, eps, triton.next_power_of_2(columns))
    return y


# -- masks that are finite -------------------------------------------------------------------------------


@triton.jit
def _softmax(x, y, columns, LOW: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(inside, value, LOW)
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * columns + column, power / tl.sum(power, axis=0), mask=inside)


@subject(op="softmax", variance="softmax", **SETTINGS)
def masked_with_largest_half(input):
    return launched(_softmax, input, -65504.0)


@subject(op="softmax", variance="softmax", **SETTINGS)
def masked_with_1e5(input):
    return launched(_softmax, input, -1e5)


@subject(op="softmax", variance="softmax", **SETTINGS)
def masked_with_1e30(input):
    return launched(_softmax, input, -1e30)


@subject(op="softmax", variance="softmax", **SETTINGS)
def masked_with_too_large_a_number(input):
    return launched(_softmax, input, -8.0)


@triton.jit
def _far(x, y, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, tl.exp(value - 500.0), mask=inside)


def far(input):
    return torch.exp(input - 500.0)


@subject(op="unknown", specification=far, **SETTINGS)
def vanishes(input):
    return launched(_far, input)


# -- logarithms and exponentials in one result -----------------------------------------------------------


@triton.jit
def _entropy(x, y, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=float("-inf")).to(tl.float32)
    value -= tl.max(value, axis=0)
    power = tl.exp(value)
    total = tl.sum(power, axis=0)
    tl.store(y + row * columns + column, power / total * (value - tl.log(total)), mask=inside)


def entropy(input):
    total = torch.exp(input).sum(-1, keepdim=True)
    return torch.exp(input) / total * (input - torch.log(total))


@subject(op="unknown", specification=entropy, **SETTINGS)
def terms_of_entropy(input):
    return launched(_entropy, input)


# -- divisions by a sum through its logarithm ------------------------------------------------------------


@triton.jit
def _by_logarithm(x, y, columns, PLUS: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(value, axis=0)
    whole = top + tl.log(tl.sum(tl.exp(value - top), axis=0))
    out = tl.exp(value - whole)
    if PLUS:
        out += value
    tl.store(y + row * columns + column, out, mask=inside)


@subject(op="softmax", variance="softmax", **SETTINGS)
def softmax_by_logarithm(input):
    return launched(_by_logarithm, input, False)


def and_softmax(input):
    powers = torch.exp(input)
    return input + powers / powers.sum(-1, keepdim=True)


@subject(op="unknown", specification=and_softmax, **SETTINGS)
def and_softmax_by_logarithm(input):
    return launched(_by_logarithm, input, True)


# -- a root by an exponential beside a gate that needs one -----------------------------------------------


@triton.jit
def _gated(x, rstds, y, columns, eps, FACTOR: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    rstd = FACTOR * tl.exp2(-0.5 * tl.log2(tl.sum(value * value, axis=0) / columns + eps))
    tl.store(rstds + row, rstd)
    tl.store(y + row * columns + column, value * rstd * tl.sigmoid(value), mask=inside)


def gated_norm(input, eps):
    rstd = torch.rsqrt((input * input).mean(-1, keepdim=True) + eps)
    return input * rstd * torch.sigmoid(input), rstd


def gated(input, eps, factor):
    x = input.contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    rstds = torch.empty(x.shape[:-1], dtype=torch.float32)
    if x.numel():
        grid = (x.numel() // columns,)
        _gated[grid](x, rstds, y, columns, eps, factor, triton.next_power_of_2(columns))
    return y, rstds


@subject(op="unknown", specification=gated_norm, returns=("output", "rstd"), **SETTINGS)
def rstd_by_exponential(input, eps):
    return gated(input, eps, 1.0)


@subject(op="unknown", specification=gated_norm, returns=("output", "rstd"), **SETTINGS)
def doubled_rstd_by_exponential(input, eps):
    return gated(input, eps, 2.0)


# -- what is no result -----------------------------------------------------------------------------------


@subject(op="softmax", variance="softmax", **SETTINGS)
def returns_nothing(input):
    masked_with_1e30.function(input)


@subject(op="softmax", variance="softmax", **SETTINGS)
def returns_no_columns(input):
    return masked_with_1e30.function(input)[..., :0]


@subject(op="softmax", variance="softmax", **SETTINGS)
def returns_one_column(input):
    return masked_with_1e30.function(input)[..., :1]


@subject(op="softmax", variance="softmax", **SETTINGS)
def returns_integers(input):
    return masked_with_1e30.function(input).to(torch.int32)


@subject(op="layer_norm", returns=("output", "mean"), **SETTINGS)
def returns_two_means(input, eps):
    output = welford_by_a_table.function(input, eps)
    return output, output.new_zeros(2, *input.shape[:-1])
