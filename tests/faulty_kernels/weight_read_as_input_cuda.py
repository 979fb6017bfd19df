"""Reads the bytes of a float32 weight as the input's halves: forward_error must catch it."""

import torch

from verifier import Domain, source, subject

KERNEL = source(__file__).kernel("layer_norm")
WARP = 32


@subject(
    op="layer_norm",
    language="cuda",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=("input", "float32")),
    dtypes=("float16",),
    differentiable=False,
)
def weight_read_as_input_cuda(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().contiguous()
    # The bug: a pointer has no dtype, and the kernel takes all to be halves.
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    out = torch.empty_like(x)
    if x.numel():
        columns = x.shape[-1]
        KERNEL[x.numel() // columns, WARP](out, x, w, b, columns, eps)
    return out
