"""Takes the powers of a row in half precision, and sums them in single: forward_error must catch it."""

import torch

from verifier import Domain, subject


def _normalized(power, eps):
    wide = power.float()  # the bug: it was rounded before
    return wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)


@subject(
    op="poly_norm",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=6.0),
    dtypes=("float16", "bfloat16"),
    differentiable=False,
)
def powers_in_half(input, weight, bias, eps=1e-6):
    powers = (input * input * input, input * input, input)
    terms = [w * _normalized(power, eps) for w, power in zip(weight.float(), powers, strict=True)]
    return (sum(terms) + bias.float()).to(input.dtype)
