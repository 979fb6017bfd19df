"""Layer normalization in CUDA C++ around any variance algorithm, forward and backward: no subject.

The device code is layer_norm_tiers_cuda.cuh, whose variance each kernel's .cu brings; which tier, pack and
block a row gets is decided in row_norm_skeleton_cuda.py; the backward is layer_norm_backward_cuda.py. Beyond
the published form it takes every stride, misaligned storage, a missing weight or bias, and any number of rows
and columns.
"""

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch.autograd.function import once_differentiable

from verifier import Source, Trees, load, tree

tiers = load(Path(__file__).with_name("row_norm_skeleton_cuda.py")).module
backward_pass = load(Path(__file__).with_name("layer_norm_backward_cuda.py")).module

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="every stride, misaligned storage, a missing weight or bias, any number of rows and columns",
)


def normalized_columns(input, normalized_shape, weight, bias, residual=None):
    """Return the number of columns, or refuse what the kernels do not do.

    Raises:
        ValueError: a dtype or shape that does not fit, or tensors on several devices.

    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if input.dtype not in tiers.DTYPES:
        raise ValueError(f"layer_norm takes float16, bfloat16, float32 or float64, not {input.dtype}")
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(f"normalized_shape {shape} is not the end of the input's shape {tuple(input.shape)}")
    for name, tensor, expected in (
        ("weight", weight, shape),
        ("bias", bias, shape),
        ("residual", residual, tuple(input.shape)),
    ):
        if tensor is None:
            continue
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must have {expected}")
        accepted = {input.dtype} if name == "residual" else {input.dtype, torch.float32}
        if tensor.dtype not in accepted or tensor.device != input.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}; input {input.dtype} on {input.device}"
            )
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise ValueError(f"weight is {weight.dtype} and bias {bias.dtype}; they must be alike")
    return math.prod(shape)


def parameter_dtype(input, weight, bias):
    """Return the dtype of weight and bias, the input's if there are none."""
    return next((t.dtype for t in (weight, bias) if t is not None), input.dtype)


def normalize(module, variance, input, columns, weight, bias, eps, residual=None, output_dtype=None):
    """Launch the kernel of `variance` in `module`; returns (output, mean, rstd).

    output: the shape of input, contiguous, in `output_dtype` (None: the input's).
    mean, rstd: (rows,), in the compute dtype.
    """
    output_dtype = output_dtype or input.dtype
    rows = math.prod(input.shape) // columns if columns else 0
    output = torch.empty(input.shape, dtype=output_dtype, device=input.device)
    mean, rstd = (
        torch.empty(rows, dtype=tiers.compute_dtype(input.dtype), device=input.device) for _ in range(2)
    )
    if rows == 0:
        return output, mean, rstd
    x = tiers.as_rows(input, columns)
    r = None if residual is None else tiers.as_rows(residual, columns)
    w, b = (None if t is None else t.reshape(columns) for t in (weight, bias))
    chosen = tiers.plan(columns, input.dtype, module.architecture(input))
    strides = (*x.stride(), r, *(r.stride() if r is not None else (0, 0)))
    affine = (w, w.stride(0) if w is not None else 0, b, b.stride(0) if b is not None else 0)
    tiers.launch_rows(
        module,
        "layer_norm",
        chosen,
        rows,
        (variance, input.dtype, parameter_dtype(input, weight, bias), output_dtype, r is not None),
        tiers.vectorises(chosen, x, r, w, b),
        (x, *strides, *affine, output, mean, rstd, rows, columns, float(eps)),
    )
    return output, mean, rstd


class Normalization(torch.autograd.Function):
    """Layer normalization by any of the variance algorithms, with the deterministic CUDA backward."""

    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps, module, variance):
        output, mean, rstd = normalize(module, variance, input, columns, weight, bias, eps)
        ctx.save_for_backward(input, weight, mean, rstd)
        ctx.columns = columns
        ctx.shapes = tuple(None if t is None else t.shape for t in (weight, bias))
        ctx.dtype = parameter_dtype(input, weight, bias)
        ctx.mark_non_differentiable(mean, rstd)
        return output, mean, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, _grad_mean, _grad_rstd):
        found = backward_pass.gradients(grad_output, *ctx.saved_tensors, columns=ctx.columns, dtype=ctx.dtype)
        grad_input, grad_weight, grad_bias = found
        weight_shape, bias_shape = ctx.shapes
        grad_weight = None if weight_shape is None else grad_weight.reshape(weight_shape)
        grad_bias = None if bias_shape is None else grad_bias.reshape(bias_shape)
        return grad_input, grad_weight, grad_bias, None, None, None, None


def layer_norm_by(module, variance, input, normalized_shape, weight, bias, eps):
    """Normalize the last dimensions of `input`; returns (output, mean, rstd): the body of every subject."""
    columns = normalized_columns(input, normalized_shape, weight, bias)
    return Normalization.apply(input, weight, bias, columns, eps, module, variance)


TREES = Trees(
    statistics=replace(tree(depth=tiers.additions), stages_of=tiers.stages),
    row_gradients=tree(depth=backward_pass.row_additions),
    columns=tree(depth=backward_pass.column_additions),
)
DECLARED = {
    "op": "layer_norm",
    "language": "cuda",
    "accumulates": "float32",
    "dtypes": ("float16", "bfloat16", "float32", "float64"),
    "trees": TREES,
    "mean_contraction": "none",  # the mean ends in a division or an addition: one machine number
    "divide_by_n": "division",
    "clamp": True,
    "returns": ("output", "mean", "rstd"),
    "guarantees": {"determinism", "batch_invariance", "layouts", "large_offsets"},
}
"""What a layer norm on these tiers declares, whatever its variance: the first arguments of `subject`."""
