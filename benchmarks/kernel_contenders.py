"""Who runs in benchmarks/kernels.py: our kernels, the published ones, torch, torch.compile and others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import torch
from kernel_grids import Work

from verifier.records.subject import Subject
from verifier.subjects.load_file import builtin_files, load_subjects

EPS = 1e-5
GROUPS = 32
FUSED = {"layer_norm_residual_cuda": "add_layer_norm", "layer_norm_residual_triton": "add_layer_norm"}
"""Subjects of which a function beside them is measured, as the op of its name.

The subject makes the two operands of the fused kernel from one, and rounds its result, by operators of torch:
an audit needs that, and it is no part of the kernel.
"""

GATED = tuple(f"{norm}_norm_{gate}_gate" for norm in ("layer", "rms") for gate in ("silu", "sigmoid"))
GATE_FIRST = tuple(f"{gate}_gate_{norm}_norm" for norm in ("layer", "rms") for gate in ("silu", "sigmoid"))
OFFSET = ("layer_norm_one_plus_weight", "rms_norm_one_plus_weight")
MASKED = ("masked_softmax", "masked_log_softmax", "causal_softmax", "causal_log_softmax")
UNMEASURED = (
    "add_layer_norm",
    "add_rms_norm",
    "dropout_add_layer_norm",
    "dropout_add_rms_norm",
    "l2_norm",
    "dynamic_tanh",
    "poly_norm",
    "instance_norm",
    *OFFSET,
    *GATED,
    *GATE_FIRST,
    *MASKED,
)
"""Ops of subjects that no grid has: some return the sum as well, a tensor more than S3's fused load moves."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One implementation of one op: `call` takes the op's arguments by name and returns the output.

    kind: "corrected", "published" or "peer". subject: whose declaration says what is proved of it.
    """

    name: str
    kind: str
    call: Callable[[dict[str, Any]], Any]
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")
    differentiable: bool = True
    subject: Subject | None = None


def arguments(work: Work, device: str, seed: int = 0) -> dict[str, Any]:
    """Draw one set of tensors; the gradient's are under "grad_output", leaves require gradients."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = getattr(torch, work.dtype)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype)

    shape = work.image or (work.rows, work.columns)
    given: dict[str, Any] = {"input": draw(*shape), "eps": EPS}
    if "softmax" in work.op:
        given["dim"] = -1
    elif work.image:
        given |= {"weight": draw(shape[1]), "bias": draw(shape[1]), "num_groups": GROUPS}
        given |= {"training": True, "momentum": 0.1}
        given |= {f"running_{name}": torch.ones(shape[1], device=device) for name in ("mean", "var")}
    else:
        given |= {"weight": draw(work.columns), "normalized_shape": (work.columns,)}
        if work.op == "add_layer_norm":
            given["residual"] = draw(*shape)
        if work.op != "rms_norm":
            given["bias"] = draw(work.columns)
    if work.op == "layer_norm_backward":
        exact = given["input"].float()
        given["mean"] = exact.mean(1)
        given["rstd"] = (exact.var(1, unbiased=False) + EPS).rsqrt()
    if work.direction == "backward":
        given["grad_output"] = draw(*shape)
        if work.op != "layer_norm_backward":
            for name in leaves(given):
                given[name].requires_grad_()
    return given


def leaves(given: dict[str, Any]) -> list[str]:
    """Return the names of the tensors that gradients are taken of."""
    return [name for name in ("input", "weight", "bias") if name in given]


def contenders(work: Work, extra: tuple[str, ...]) -> list[Contender]:
    """Return everyone who runs at a point; `extra` names further packages."""
    found = [c for c in chain(_ours(work.op), _torch(work.op)) if work.dtype in c.dtypes]
    if not work.coarse:
        found = [c for c in found if c.name != "torch.compile"]
    found += [c for name in extra for c in PACKAGES[name](work.op)]
    raw = work.op == "layer_norm_backward"
    return [c for c in found if raw or work.direction == "forward" or c.differentiable]


def _ours(op: str) -> Iterator[Contender]:
    for subject in _built_in():
        if subject.op in UNMEASURED:
            continue
        if FUSED.get(subject.name, subject.op) == op and subject.language != "torch":
            yield Contender(
                name=subject.name,
                kind="published" if subject.known_defects else "corrected",
                call=_calls(subject),
                dtypes=subject.dtypes,
                differentiable=subject.differentiable,
                subject=subject,
            )


@cache
def _built_in() -> tuple[Subject, ...]:
    return tuple(chain.from_iterable(load_subjects(file) for file in builtin_files()))


def _calls(subject: Subject) -> Callable[[dict[str, Any]], Any]:
    function: Callable[..., Any] = subject
    names = tuple(subject.signature)
    if subject.name in FUSED:
        function = subject.function.__globals__[FUSED[subject.name]]
        names = tuple(inspect.signature(function).parameters)

    def call(given: dict[str, Any]) -> Any:
        result = function(**{name: given[name] for name in names if name in given})
        return result[0] if isinstance(result, tuple) and subject.returns[0] == "output" else result

    return call


def _torch(op: str) -> Iterator[Contender]:
    function = torch_function(op)
    if function is None:
        return
    names = tuple(inspect.signature(function).parameters)

    def eager(given: dict[str, Any]) -> Any:
        return function(**{name: given[name] for name in names if name in given})

    compiled = torch.compile(function, dynamic=False)

    def fused(given: dict[str, Any]) -> Any:
        return compiled(**{name: given[name] for name in names if name in given})

    yield Contender(name="torch", kind="peer", call=eager)
    yield Contender(name="torch.compile", kind="peer", call=fused)


def torch_function(op: str) -> Callable[..., Any] | None:
    """Return torch's own function of an op, under its own argument names; None for a raw backward."""
    functional = torch.nn.functional

    def layer_norm(input, normalized_shape, weight, bias, eps):
        return functional.layer_norm(input, normalized_shape, weight, bias, eps)

    def add_layer_norm(input, residual, normalized_shape, weight, bias, eps):  # noqa: PLR0917
        return functional.layer_norm(input + residual, normalized_shape, weight, bias, eps)

    def rms_norm(input, normalized_shape, weight, eps):
        return functional.rms_norm(input, normalized_shape, weight, eps)

    def batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps):  # noqa: PLR0917
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)

    def group_norm(input, num_groups, weight, bias, eps):
        return functional.group_norm(input, num_groups, weight, bias, eps)

    def softmax(input, dim):
        return functional.softmax(input, dim)

    def log_softmax(input, dim):
        return functional.log_softmax(input, dim)

    known = (layer_norm, add_layer_norm, rms_norm, batch_norm, group_norm, softmax, log_softmax)
    return {f.__name__: f for f in known}.get(op)


def _liger(op: str) -> list[Contender]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    calls = {
        "layer_norm": lambda g: LigerLayerNormFunction.apply(g["input"], g["weight"], g["bias"], g["eps"]),
        "rms_norm": lambda g: LigerRMSNormFunction.apply(g["input"], g["weight"], g["eps"]),
        "softmax": lambda g: LigerSoftmaxFunction.apply(g["input"]),
    }
    return [Contender(name="Liger", kind="peer", call=calls[op])] if op in calls else []


def _quack(op: str) -> list[Contender]:
    import quack

    calls = {
        "rms_norm": lambda g: quack.rmsnorm(g["input"], g["weight"], eps=g["eps"]),
        "softmax": lambda g: quack.softmax(g["input"]),
    }
    return [Contender(name="QuACK", kind="peer", call=calls[op])] if op in calls else []


PACKAGES: dict[str, Callable[[str], list[Contender]]] = {"liger": _liger, "quack": _quack}


def available(names: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the packages that can be imported, and why the others cannot."""
    usable, missing = [], {}
    for name in names:
        try:
            PACKAGES[name]("layer_norm")
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}".split("\n")[0]
        else:
            usable.append(name)
    return tuple(usable), missing
