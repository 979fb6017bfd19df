"""Takes a lock for a row and never gives it back: two rows never end, and synchronization must catch it."""

import torch

from verifier import Domain, source, subject

KERNEL = source(__file__).kernel("layer_norm")
THREADS = 32


@subject(
    op="layer_norm",
    language="cuda",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
)
def lock_kept_cuda(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().contiguous()
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    out = torch.empty_like(x)
    lock = torch.zeros(1, dtype=torch.int32, device=x.device)
    if x.numel():
        columns = x.shape[-1]
        KERNEL[x.numel() // columns, THREADS](out, lock, x, w, b, columns, eps)
    return out
