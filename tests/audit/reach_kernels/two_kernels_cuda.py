"""The CUDA C++ kernels of two_kernels_cuda.cu."""

import torch

from verifier import source, subject

CODE = source(__file__)


@subject(
    op="rms_norm",
    language="cuda",
    variance="rms",
    accumulates="float32",
    dtypes=("float32",),
    differentiable=False,
)
def two_kernels_cuda(input, eps=1e-5):
    x = input.detach().contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    if x.numel():
        name = "endless_row" if columns >= 2**24 else "short_row"
        CODE.kernel(name)[x.numel() // columns, 32](y, x, columns, float(eps))
    return y
