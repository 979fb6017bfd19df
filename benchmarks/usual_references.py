"""What authors of tests compare a kernel with: its op, written in functions of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

Tensors = Mapping[str, torch.Tensor]
Scalars = Mapping[str, Any]

DIFFERENTIABLE = ("input", "residual", "gate", "alpha", "weight", "bias")
GATES = {"silu": functional.silu, "sigmoid": torch.sigmoid}


def composed(op: str, given: Tensors, scalars: Scalars) -> dict[str, torch.Tensor]:
    """Return the results of an op: its output, and the new residual of a norm of a sum."""
    if op in OTHERS:
        return {"output": OTHERS[op](given, scalars)}
    if "softmax" in op:
        return {"output": _softmax(op, given, scalars)}
    results = {}
    x, weight = given["input"], given.get("weight")
    if "residual" in given:
        kept = given.get("dropout_mask")
        x = given["residual"] + (x if kept is None else x * kept / (1 - scalars["p"]))
        results["new_residual"] = x
    gate = next((GATES[name](given["gate"]) for name in GATES if name in op), None)
    if gate is not None and op.startswith(tuple(GATES)):
        x, gate = x * gate, None
    if op.endswith("one_plus_weight"):
        weight = 1 + weight
    if "rms_norm" in op:
        y = functional.rms_norm(x, _shape(x, scalars), weight, scalars["eps"])
    else:
        y = functional.layer_norm(x, _shape(x, scalars), weight, given.get("bias"), scalars["eps"])
    return {"output": y if gate is None else y * gate, **results}


def _shape(x: torch.Tensor, scalars: Scalars) -> tuple[int, ...]:
    return tuple(scalars.get("normalized_shape", x.shape[-1:]))


def _softmax(op: str, given: Tensors, scalars: Scalars) -> torch.Tensor:
    """Return a softmax or its logarithm; a row of which nothing takes part gives zeros, or -inf."""
    scores = given["input"] * scalars.get("scale", 1.0)
    scores = scores + given["attn_bias"] if "attn_bias" in given else scores
    kept = given.get("mask", torch.ones((), dtype=torch.bool)).broadcast_to(scores.shape)
    if op.startswith("causal"):
        kept = kept.tril(scalars.get("diagonal", 0))
    logarithm = op.endswith("log_softmax")
    function, nothing = (functional.log_softmax, -torch.inf) if logarithm else (functional.softmax, 0.0)
    y = function(scores.masked_fill(~kept, -torch.inf), dim=scalars.get("dim", -1))
    return y.masked_fill(~kept.any(-1, keepdim=True), nothing)


def _batch_norm(given: Tensors, scalars: Scalars) -> torch.Tensor:
    training = scalars.get("training", True)
    kept = (None, None) if training else (given["running_mean"], given["running_var"])
    parameters = given.get("weight"), given.get("bias")
    return functional.batch_norm(given["input"], *kept, *parameters, training, 0.1, scalars["eps"])


def _group_norm(given: Tensors, scalars: Scalars) -> torch.Tensor:
    parameters = given.get("weight"), given.get("bias")
    return functional.group_norm(given["input"], scalars["num_groups"], *parameters, scalars["eps"])


def _instance_norm(given: Tensors, scalars: Scalars) -> torch.Tensor:
    parameters = given.get("weight"), given.get("bias")
    return functional.instance_norm(given["input"], None, None, *parameters, eps=scalars["eps"])


def _l2_norm(given: Tensors, scalars: Scalars) -> torch.Tensor:
    x = given["input"]
    axes = tuple(range(-len(_shape(x, scalars)), 0))
    return x * torch.rsqrt(x.square().sum(axes, keepdim=True) + scalars["eps"])


def _dynamic_tanh(given: Tensors, _: Scalars) -> torch.Tensor:
    y = torch.tanh(given["alpha"] * given["input"])
    y = y * given["weight"] if "weight" in given else y
    return y + given["bias"] if "bias" in given else y


def _poly_norm(given: Tensors, scalars: Scalars) -> torch.Tensor:
    x = given["input"]
    norms = [functional.rms_norm(x**power, _shape(x, scalars), None, scalars["eps"]) for power in (3, 2, 1)]
    return sum((w * u for w, u in zip(given["weight"], norms, strict=True)), start=given["bias"])


OTHERS: Mapping[str, Callable[[Tensors, Scalars], torch.Tensor]] = {
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "l2_norm": _l2_norm,
    "dynamic_tanh": _dynamic_tanh,
    "poly_norm": _poly_norm,
}
