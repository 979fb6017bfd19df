"""Reads what it has written by the cache that sees no writes: synchronization must catch it."""

import torch

from verifier import Domain, source, subject

KERNEL = source(__file__).kernel("layer_norm")
THREADS = 64


@subject(
    op="layer_norm",
    language="cuda",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
)
def own_results_by_read_only_cache_cuda(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().contiguous()
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    out = torch.empty_like(x)
    if x.numel():
        columns = x.shape[-1]
        KERNEL[x.numel() // columns, THREADS](out, x, w, b, columns, eps)
    return out
