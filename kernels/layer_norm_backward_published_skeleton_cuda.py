"""What the five published steps of a CUDA layer norm backward share: no subject.

The five teach how one kernel gets faster: a thread per row, a warp per row, dy staged in shared memory, a
block per row, and a block for many rows. All take contiguous (batch, sequence, hidden) tensors and the
statistics of the forward, index in 32 bits, sum in the storage type T, and add to dweight and dbias
atomically and to dx by +=.
layer_norm_backward_cuda.py is the same algorithm with the defects mended.
"""

import torch

from verifier import Domain, Form, KnownDefect, Trees, any_order

DTYPES = (torch.float16, torch.float32)


def prepare(grad_output, input, weight, mean, rstd, *, clear=True):
    """Return ((dx, dweight, dbias), the kernel's tensor arguments, rows, hidden).

    The published launch leaves dx to the caller; `clear` says whether this caller zeroes it.

    Raises:
        ValueError: a tensor that is not contiguous, a missing weight, another dtype than float16 and float32.

    """
    if weight is None:
        raise ValueError("The published layer norm backward needs a weight.")
    if input.dtype not in DTYPES:
        raise ValueError(f"The published layer norm backward takes float16 and float32, not {input.dtype}.")
    if not all(t.is_contiguous() for t in (grad_output, input, weight)):
        raise ValueError("The published layer norm backward takes contiguous tensors.")
    if input.numel() == 0:
        raise ValueError("The published layer norm backward takes at least one row and one column.")
    hidden = weight.numel()
    dx = torch.zeros_like(input) if clear else torch.empty_like(input)
    dweight, dbias = torch.zeros_like(weight), torch.zeros_like(weight)
    statistics = (mean.to(input.dtype), rstd.to(input.dtype))  # T in every place
    return (dx, dweight, dbias), (grad_output, input, weight, *statistics), input.numel() // hidden, hidden


def _forward(k, t):
    mean, rstd = k.moments(t.x)
    value = (t.x - mean) * rstd
    value = value if t.weight is None else value * t.weight
    return value if t.bias is None else value + t.bias


def _backward(k, t):
    mean, rstd = k.saved_moments(t.x)
    norm = (t.x - mean) * rstd
    dnorm = t.grad_output * t.weight
    dnorm_mean, dnorm_norm_mean = k.mean(dnorm), k.mean(dnorm * norm)
    return {
        "grad_input": (dnorm - dnorm_mean - norm * dnorm_norm_mean) * rstd,
        "grad_weight": k.parameter_sum(norm * t.grad_output, atomic=True),
        "grad_bias": k.parameter_sum(t.grad_output, atomic=True),
    }


FORM = Form(name="two differences", forward=_forward, backward=_backward)


def claim(row_tree, max_columns=None):
    """Return the declaration that the five share; it says what the text promises, sums in float."""
    return {
        "op": "layer_norm_backward",
        "language": "cuda",
        "accumulates": "float32",
        "dtypes": ("float16", "float32"),
        "trees": Trees(row_gradients=row_tree, columns=any_order()),
        "formula": FORM,
        "mean_contraction": "none",
        "divide_by_n": "division",
        "saved_dtype": "input",
        "domain": Domain(
            min_rows=1, min_columns=1, max_columns=max_columns, layouts=("contiguous",), optional=False
        ),
        "guarantees": {"determinism"},
        "returns": ("grad_input", "grad_weight", "grad_bias"),
    }


IN_HALF = KnownDefect(
    id="sums-in-half",
    check="gradient",
    reason="The sums over a row, grad_weight and grad_bias are kept in the storage type: half adds in half.",
    dtypes=("float16",),
    also=("*",),
)
ATOMICS = KnownDefect(
    id="atomics",
    check="determinism",
    reason="grad_weight and grad_bias are added atomically, in whatever order the blocks come: their bits "
    "differ from run to run.",
    where=lambda case: case.rows > 2,  # two numbers added to zero commute
)
