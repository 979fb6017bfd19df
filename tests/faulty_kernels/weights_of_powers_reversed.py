"""Takes the weights of the powers in the other order, the first for x: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="poly_norm",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e5),
    dtypes=("float32",),
    differentiable=False,
)
def weights_of_powers_reversed(input, weight, bias, eps=1e-6):
    total = bias
    for exponent, w in enumerate(weight, 1):  # the bug: the first weight is that of x**3
        power = input**exponent
        total = total + w * (power / torch.sqrt(power.square().mean(-1, keepdim=True) + eps))
    return total
