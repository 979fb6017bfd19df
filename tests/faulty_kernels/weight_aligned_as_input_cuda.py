"""Loads two float32 weights at once where two halves would be aligned: layouts must catch it."""

import torch

from verifier import Domain, source, subject

KERNELS = source(__file__)
WARP = 32


@subject(
    op="layer_norm",
    language="cuda",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3, min_columns=16, parameter_dtypes=("input", "float32")),
    dtypes=("float16",),
    differentiable=False,
)
def weight_aligned_as_input_cuda(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().contiguous()
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    if w is not None and b is not None and w.dtype != b.dtype:
        raise ValueError(f"weight is {w.dtype} and bias {b.dtype}; they must be alike")
    out = torch.empty_like(x)
    if x.numel():
        columns = x.shape[-1]
        pair = 2 * x.element_size()  # the bug: a pair of weights may be wider
        vector = columns % 2 == 0 and all(t is None or t.data_ptr() % pair == 0 for t in (x, w, b))
        held = next((t.dtype for t in (w, b) if t is not None), x.dtype)
        kernel = KERNELS.kernel("layer_norm", held, vector)
        kernel[x.numel() // columns, WARP](out, x, w, b, columns, eps)
    return out
