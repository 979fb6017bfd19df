"""Layer normalization by hand in torch operators, one call for mean and variance, as the norm series has it.

The series writes it as a module over the last dimensions; here it is the module's forward. torch.var_mean is
Welford's algorithm on the CPU. Half is left out: torch would round the statistics to it.
"""

import torch

from verifier import Domain, Source, subject

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="the forward of its module stands alone",
)


@subject(
    op="layer_norm",
    language="torch",
    source=SOURCE,
    variance="welford",
    accumulates="float32",
    dtypes=("float32", "float64"),
    domain=Domain(min_rows=1, min_columns=1, max_abs=1e15, max_kappa=1e2),
    differentiable=False,  # forward only: autograd's way back through these operators is another formula
)
def layer_norm_welford_torch(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    dims = tuple(range(-len(normalized_shape), 0))
    variance, mean = torch.var_mean(input, dims, correction=0, keepdim=True)
    output = (input - mean) / torch.sqrt(variance + eps)
    output = output if weight is None else output * weight
    return output if bias is None else output + bias
