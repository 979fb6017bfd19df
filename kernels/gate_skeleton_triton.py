"""What norms with a gate share in Triton, whether it comes before the norm or after: no subject."""

from pathlib import Path

import triton
import triton.language as tl

from verifier import load

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide = skeleton.divide

DTYPES = ("float16", "bfloat16", "float32")


@triton.jit
def logistic(gate):
    # Where the exponential overflows the quotient is 0, which it is to within the smallest numbers.
    return divide(tl.full(gate.shape, 1.0, gate.dtype), 1.0 + tl.exp(-gate))


@triton.jit
def affine(value, weight, bias, column, inside, weight_step, bias_step, ACCUMULATE: tl.constexpr):
    if weight is not None:
        value *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    if bias is not None:
        value += tl.load(bias + column * bias_step, mask=inside, other=0.0).to(ACCUMULATE)
    return value


def refuse_gate(op, input, gate):
    """Raises where a gate is not what the kernels can read beside the input."""
    if gate.shape != input.shape or gate.dtype != input.dtype or gate.device != input.device:
        raise ValueError(f"{op} takes a gate of the shape, dtype and device of input.")
