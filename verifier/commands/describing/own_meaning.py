"""Norms that are no op of ours, as texts of specifications: which of them a function computes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

CORES = {
    "x": ("x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)",),
    "d": ("d / torch.sqrt((d * d).mean(-1, keepdim=True) + eps)",),
    "l2": (
        "x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)",
        "x / (torch.sqrt((x * x).sum(-1, keepdim=True)) + eps)",
    ),
    "outside": ("x / (torch.sqrt((x * x).mean(-1, keepdim=True)) + eps)",),
}
"""Ways to normalize a row: by its root mean square, centred, by its length; eps inside or outside."""
GATES = {
    "": "",
    "y = y * gate * torch.sigmoid(gate)": "after",
    "x = x * gate * torch.sigmoid(gate)": "before",
    "y = y * torch.sigmoid(gate)": "after",
    "y = y * gate": "after",
}
"""What a gate does, and whether before or after the norm."""
TOLERANCE = {"float32": 1e-4, "float16": 1.0 / 64, "bfloat16": 1.0 / 8, "float64": 1e-11}
"""Difference from a specification, relative to the largest number of a row, up to which it fits."""
EPS = 0.25
"""eps of the case by which specifications are told apart: it is seen in every result."""


def specifications(takes: Sequence[str], name: str) -> Iterator[str]:
    """Yield functions of the arguments that a call has, as text, the simplest first.

    name: of the functions.
    """
    cores = [(kind, core) for kind, texts in CORES.items() for core in texts]
    weights = ("y = y * weight", "y = y * (1 + weight)") if "weight" in takes else ("",)
    gates = [g for g in GATES if bool(g) == ("gate" in takes)]
    heads = ", ".join(n for n in ("input", "residual", "gate", "weight", "bias", "eps") if n in takes)
    eps = [] if "eps" in takes else ["eps = 1e-5", "eps = 1e-6"]
    for constant, (kind, core), weight, gate in itertools.product(eps or [""], cores, weights, gates):
        lines = [
            constant,
            "x = input + residual" if "residual" in takes else "x = input",
            gate if GATES[gate] == "before" else "",
            "d = x - x.mean(-1, keepdim=True)" if kind == "d" else "",
            f"y = {core}",
            weight,
            "y = y + bias" if "bias" in takes else "",
            gate if GATES[gate] == "after" else "",
            "return y",
        ]
        yield "\n".join((f"def {name}({heads}):", *(f"    {line}" for line in lines if line)))


def skeleton(takes: Sequence[str], name: str) -> str:
    """Return a specification to be written by hand: it says that the output is the input."""
    heads = ", ".join(takes)
    return "\n".join(
        (
            f"def {name}({heads}):",
            "    # Write here what a row of the output is, with torch and without roundings:",
            "    # y = input / torch.sqrt((input * input).mean(-1, keepdim=True) + eps)",
            "    return input",
        )
    )


def fitting_text(
    texts: Iterator[str], name: str, given: Mapping[str, torch.Tensor], output: torch.Tensor, dtype: str
) -> str | None:
    """Return the first specification that gives the output of one case, or None.

    given: the case's tensors of shape (rows, columns), weight and bias (columns,). Its eps is `EPS`.
    """
    wide = {n: t.double() if t.dim() != 1 else t.double()[None] for n, t in given.items()}
    seen = output.double()
    for text in texts:
        made: dict[str, object] = {"torch": torch}
        exec(text, made)  # noqa: S102 (text of this file)
        function = made[name]
        taken = function.__code__.co_varnames[: function.__code__.co_argcount]  # type: ignore[attr-defined]
        wanted = function(**{n: EPS if n == "eps" else wide[n] for n in taken})  # type: ignore[operator]
        scale = wanted.abs().amax(-1, keepdim=True)
        if wanted.shape == seen.shape and bool(((wanted - seen).abs() <= TOLERANCE[dtype] * scale).all()):
            return text
    return None
