"""Overwrites in long rows what the other block may not have read: synchronization must catch it."""

import torch

from verifier import Domain, source, subject

KERNELS = source(__file__)
THREADS, SHORT = 128, 6000


@subject(
    op="layer_norm",
    language="cuda",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
)
def slots_of_cluster_in_use_cuda(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().contiguous()
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    out = torch.empty_like(x)
    if x.numel():
        columns = x.shape[-1]
        kernel = KERNELS.kernel("layer_norm", columns > SHORT)
        kernel[2 * (x.numel() // columns), THREADS](out, x, w, b, columns, eps)
    return out
