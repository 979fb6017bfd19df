"""Kernels of an op whose problem an extension brings to the oracle."""

from verifier import subject

_DECLARED = {
    "op": "peak_norm",
    "language": "torch",
    "dtypes": ("float32",),
    "formula": "canonical",
    "differentiable": False,
}


def _peak(x):
    return x.abs().amax(0, keepdim=True) if len(x) else x.new_ones(())


@subject(**_DECLARED)
def peak_norm(input, eps=1e-5):
    return input / _peak(input)


@subject(**_DECLARED)
def peak_norm_of_reciprocal(input, eps=1e-5):
    """Multiplies by a reciprocal: two roundings where one is declared."""
    return input * (1 / _peak(input))
