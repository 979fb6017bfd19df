"""Reads two floats at once where the first row is aligned, and no other need be: layouts must catch it."""

import torch

from verifier import Domain, source, subject

KERNELS = source(__file__)
WARP = 32


@subject(
    op="rms_norm",
    language="cuda",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15, min_columns=2),
    dtypes=("float32",),
    differentiable=False,
)
def first_row_aligned_cuda(input, weight=None, eps=1e-5):
    columns = input.shape[-1]
    x = input.detach().reshape(-1, columns)
    w = None if weight is None else weight.detach().contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        # The bug: with an odd row stride every other row begins between two pairs.
        pairs = columns % 2 == 0 and x.stride(1) == 1 and x.data_ptr() % 8 == 0
        KERNELS.kernel("rms_norm", pairs)[x.shape[0], WARP](out, x, *x.stride(), w, columns, eps)
    return out.reshape(input.shape)
