"""Torch subjects with specifications of their own: right ones, wrong ones, and what cannot be followed."""

import torch

from verifier import Domain, subject

HALF = ("float16", "bfloat16", "float32")


def specification(input, weight, eps):
    return input * (input.square().mean(-1, keepdim=True) + eps) ** -0.5 * (1 + weight)


def declared(dtypes=HALF, meaning=specification, **others):
    return subject(
        op="unknown",
        specification=meaning,
        language="torch",
        dtypes=dtypes,
        domain=Domain(max_abs=1e15, min_rows=1, min_columns=1, optional=False),
        **others,
    )


@declared(dtypes=(*HALF, "float64"))
def right(input, weight, eps=1e-6):
    x = input.float()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return (y * (1.0 + weight.float())).type_as(input)


@declared(differentiable=False)
def rounded_on_the_way(input, weight, eps=1e-6):
    mean_square = (input.float() * input.float()).sum(-1, keepdim=True) / input.shape[-1]
    return input / torch.sqrt(mean_square + eps).to(input.dtype) * (1 + weight)


def gated(input, weight, eps):
    y = input / (input.square().mean(-1, keepdim=True) + eps).sqrt()
    return torch.sigmoid(1.702 * y) * y * torch.tanh(weight) + torch.exp(-torch.nn.functional.silu(weight))


@declared(meaning=gated)
def functions(input, weight, eps=1e-6):
    x, w = input.float(), weight.float()
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    y = torch.sigmoid(1.702 * y) * y * torch.tanh(w) + torch.exp(-w * torch.sigmoid(w))
    return y.type_as(input)


@declared(dtypes=("float16",), differentiable=False)
def squares_in_half(input, weight, eps=1e-6):
    return input * torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight)


def scaled(input, weight):
    return input * weight / 8


@declared(dtypes=("float16",), meaning=scaled, differentiable=False)
def divided_last(input, weight):
    return input * weight / 8


def over_square(input, weight):
    return input / (weight * weight + 1)


@declared(dtypes=("float16",), meaning=over_square, differentiable=False)
def divisor_overflows(input, weight):
    divisor = (weight * weight + 1) * 20000
    return (input / divisor) * 20000


@declared(differentiable=False)
def weight_for_one_and_weight(input, weight, eps=1e-6):
    x = input.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).type_as(input)


@declared(dtypes=("float32",), differentiable=False)
def one_column_less(input, weight, eps=1e-6):
    total = input.pow(2).sum(-1, keepdim=True)
    columns = max(input.shape[-1] - 1, 1)
    return input * torch.rsqrt(total / columns + eps) * (1.0 + weight)


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return x * ctx.rstd * (1 + weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d):
        x, weight = ctx.saved_tensors
        hat = x * ctx.rstd
        rows = tuple(range(d.dim() - weight.dim()))
        return d * (1 + weight) * ctx.rstd, (d * hat).sum(rows), None  # the term of the mean is missing


@declared(dtypes=("float32",))
def backward_without_mean_term(input, weight, eps=1e-6):
    return _WrongBackward.apply(input, weight, eps)


@declared(dtypes=("float32",), differentiable=False)
def by_an_unknown_operation(input, weight, eps=1e-6):
    norm = torch.linalg.vector_norm(input, dim=-1, keepdim=True)
    return input * torch.rsqrt(norm * norm / input.shape[-1] + eps) * (1.0 + weight)
