"""Returns the output in the weight's dtype, as a product of both has it: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    formula="cast_before_weight",
    domain=Domain(max_abs=1e15, parameter_dtypes=("input", "float32")),
    dtypes=("float16", "bfloat16"),
    differentiable=False,
)
def output_in_weight_dtype(input, weight=None, eps=1e-5):
    x = input.detach().float()
    hat = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)).to(input.dtype)
    return hat if weight is None else hat * weight.detach()  # the bug, where weight is wider
