"""What the arguments of a function mean, and a few lines of Python that call it with an op's arguments."""

from __future__ import annotations

import inspect
import itertools
import keyword
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from verifier.ops import Op

USUAL: Mapping[str, tuple[str, ...]] = {
    "input": ("input", "x", "input_", "inp", "inputs", "hidden_states", "hidden", "x0", "x_ptr", "src"),
    "weight": ("weight", "w", "gamma", "scale", "norm_weight", "ln_weight", "affine_scaling_weight"),
    "bias": ("bias", "b", "beta", "norm_bias", "ln_bias", "affine_shifting_bias"),
    "residual": ("residual", "r", "res", "residual_input", "x_residual"),
    "gate": ("gate", "g", "z"),
    "eps": (
        "eps",
        "epsilon",
        "variance_epsilon",
        "layer_norm_eps",
        "layernorm_eps",
        "rms_norm_eps",
        "var_eps",
    ),
    "normalized_shape": ("normalized_shape", "norm_shape"),
    "num_groups": ("num_groups", "groups", "n_groups"),
    "dim": ("dim", "axis"),
    "out": ("out", "output", "y", "out_"),
    "columns": ("n", "n_cols", "ncols", "columns", "hidden_size", "hidden_dim", "d"),
    "rows": ("m", "n_rows", "nrows", "rows"),
    "channels": ("num_channels", "channels", "n_channels"),
    "probability": ("dropout_p", "dropout", "p", "p_dropout"),
    "module": ("layernorm", "layer_norm", "norm", "layer", "module", "ln"),
}
"""Names of arguments in public norms by what they mean, in small letters."""
MEANINGS = {name: meaning for meaning, names in USUAL.items() for name in names}
COMPUTED = {
    "columns": "input.shape[-1]",
    "rows": "input.numel() // max(input.shape[-1], 1)",
    "channels": "input.shape[1]",
    "probability": "0.0",
}
"""What stands for an argument that follows from the others, or that a norm does not have."""
TENSORS = ("input", "weight", "bias", "residual", "gate")
"""Tensors that arguments with names of their own may be, in the order in which most functions take them."""
MOST_RESULTS = 4
"""Results of a function that are looked at: output, two statistics, a sum with the residual."""
MOST_WAYS = 12
"""Readings of a signature that are tried for each op."""

Style = Literal["returned", "out", "in_place"]


@dataclass(frozen=True, kw_only=True)
class Calling:
    """One way to call a function as an op.

    given: an expression over the op's arguments for each parameter that is given, in order. takes: the op's
    arguments that it needs, each with the text of its default, None where it must be given. style: whether
    the result is returned, written into an argument `out`, or left in the input. picked: which of several
    results is the output; None where there is one. returns: names of the results that are taken, where these
    are several. positional: parameters that are given by place alone. everything: all parameters, each with
    the text of its default.
    """

    op: str
    given: tuple[tuple[str, str], ...]
    takes: Mapping[str, str | None]
    style: Style = "returned"
    picked: int | None = None
    returns: tuple[str, ...] = ("output",)
    positional: frozenset[str] = frozenset()
    everything: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether the function itself takes the op's arguments by their names and returns the output."""
        return (
            self.op != "unknown"
            and self.style == "returned"
            and self.picked is None
            and not self.positional
            and all(n == e for n, e in self.given)
        )

    @property
    def names(self) -> str:
        """Say which argument of the function is which of the op's, where the names differ."""
        renamed = [f"{name} is {text}" for name, text in self.given if name != text and text in self.takes]
        further = [f"{name}={text}" for name, text in self.given if name != text and text not in self.takes]
        return ", ".join((*renamed, *further))

    def left_out(self) -> tuple[str, ...]:
        """Return the parameters that keep their defaults."""
        given = {name for name, _ in self.given}
        return tuple(name for name in self.everything if name not in given)

    def requiring(self, *names: str) -> Calling:
        """Return the same call with op's arguments that must be given."""
        takes = {n: None if n in names else default for n, default in self.takes.items()}
        return _replaced(self, takes=takes)

    def picking(self, index: int) -> Calling:
        """Return the same call of a function that returns several results."""
        return _replaced(self, picked=index)

    def returning(self, *names: str) -> Calling:
        """Return the same call, of which several results are taken."""
        return replace(self, picked=None, returns=names)

    @property
    def several(self) -> int:
        """Results that there may be: those of a tuple are not counted before they are picked."""
        if self.style == "in_place":
            return sum(n in self.takes for n in ("input", "residual"))
        return 1 if self.picked is None else MOST_RESULTS

    def in_place(self) -> Calling:
        """Return the same call of a function that leaves its result in the input."""
        return _replaced(self, style="in_place")

    def without_optional(self, *names: str) -> Calling:
        """Return the same call, with arguments left at their defaults where the function has one."""
        left = {n for n in names if self.takes.get(n) is not None}
        takes = {n: default for n, default in self.takes.items() if n not in left}
        return _replaced(self, takes=takes, given=tuple((n, e) for n, e in self.given if e not in left))

    def fixing(self, name: str, text: str) -> Calling:
        """Return the same call, with an op's argument that is always this one."""
        takes = {n: default for n, default in self.takes.items() if n != name}
        given = tuple((n, text if e == name else e) for n, e in self.given)
        return _replaced(self, takes=takes, given=given)

    def source(self, name: str, called: str) -> str:
        """Return a function of the op's arguments that makes this call.

        name: of the function. called: what the function under test is called there.
        """
        order = {n: i for i, n in enumerate(TENSORS)}
        taken = sorted(
            self.takes.items(), key=lambda item: (item[1] is not None, order.get(item[0], len(order)))
        )
        heads = ", ".join(n if default is None else f"{n}={default}" for n, default in taken)
        call = f"{called}({', '.join(self._arguments())})"
        if self.style == "out":
            made = "torch.empty(input.shape, dtype=input.dtype, device=input.device)"
            body = [f"out = {made}", call, "return out"]
        elif self.style == "in_place":
            changed = [n for n in ("input", "residual") if n in self.takes]
            copied = ", ".join(f"{n}.contiguous().clone()" for n in changed)
            body = [f"{', '.join(changed)} = {copied}", call]
            left = changed[: len(self.returns)] if not self.picked else changed[self.picked : self.picked + 1]
            body.append(f"return {', '.join(left)}")
        elif len(self.returns) > 1:
            body = [f"return {call}[:{len(self.returns)}]"]
        elif self.picked is not None:
            body = [f"return {call}[{self.picked}]"]
        else:
            body = [f"return {call}"]
        return "\n".join((f"def {name}({heads}):", *textwrap.indent("\n".join(body), "    ").splitlines()))

    def imports(self) -> tuple[str, ...]:
        """Return the imports that the source needs."""
        needed = []
        if any("SimpleNamespace" in text for _, text in self.given):
            needed.append("from types import SimpleNamespace")
        if self.style == "out":
            needed.append("import torch")
        return tuple(needed)

    def _arguments(self) -> Iterator[str]:
        given, skipped = dict(self.given), False
        last = max(
            (n for n, name in enumerate(self.everything) if name in given and name in self.positional),
            default=-1,
        )
        for place, (name, default) in enumerate(self.everything.items()):
            if name not in given and place < last and default is not None:
                yield default
            elif name not in given:
                skipped = True
            elif name in self.positional or not skipped:
                yield given[name]
            else:
                yield f"{name}={given[name]}"


def _replaced(calling: Calling, **changes: object) -> Calling:
    return replace(calling, **changes)  # type: ignore[arg-type]


def meanings(function: Callable[..., object]) -> dict[str, str | None]:
    """Return what each parameter of a function means by its name, None where the name is not known."""
    return {
        name: MEANINGS.get(name.lower().rstrip("_")) or MEANINGS.get(name.lower())
        for name in _parameters(function)
    }


def takes_an_input(function: Callable[..., object]) -> bool:
    """Return whether a function has an argument that is called as the input of a norm is."""
    return "input" in meanings(function).values()


def callings(function: Callable[..., object], the_op: Op) -> list[Calling]:
    """Return the ways in which a function may be meant to be called as an op, the likeliest first."""
    parameters = _parameters(function)
    scalars = _scalars(the_op)
    known = meanings(function)
    for name in parameters:  # names of the op itself, such as running_mean
        if known[name] is None and name in {*the_op.tensors, *scalars}:
            known[name] = name
    free = [n for n, p in parameters.items() if known[n] is None and p.default is p.empty]
    used = {m for m in known.values() if m is not None}
    offered = [m for m in (*TENSORS, "eps") if m not in used and (m in the_op.tensors or m == "eps")]
    found = []
    for chosen in itertools.islice(itertools.combinations(offered, len(free)), MOST_WAYS):
        read = {**known, **dict(zip(free, chosen, strict=True))}
        calling = _calling(function, the_op, read, scalars)
        if calling is not None:
            found.append(calling)
    return found


def _calling(
    function: Callable[..., object], the_op: Op, read: Mapping[str, str | None], scalars: Sequence[str]
) -> Calling | None:
    """Return the call in which parameters mean what is read into them, or None where something lacks."""
    parameters = _parameters(function)
    own = {*the_op.tensors, *scalars, "eps"}
    given: list[tuple[str, str]] = []
    takes: dict[str, str | None] = {}
    style: Style = "returned"
    if "num_groups" in scalars and "num_groups" not in read.values():
        return None
    for name, parameter in parameters.items():
        meaning, demanded = read[name], parameter.default is parameter.empty
        if meaning in own and meaning not in takes:
            given.append((name, meaning))
            takes[meaning] = None if demanded else _default(parameter.default)
        elif meaning == "module" and demanded:
            held = [n for n in ("weight", "bias") if n in the_op.tensors]
            fields = ", ".join((*(f"{n}={n}" for n in held), "eps=eps", "variance_epsilon=eps"))
            given.append((name, f"SimpleNamespace({fields})"))
            takes |= dict.fromkeys((*held, "eps"))
        elif not demanded:
            continue
        elif meaning == "out":
            given.append((name, "out"))
            style = "out"
        elif meaning in COMPUTED:
            given.append((name, COMPUTED[meaning]))
        elif meaning == "dim":
            given.append((name, "-1"))
        elif meaning == "normalized_shape":
            given.append((name, "input.shape[-1:]"))
        elif meaning in {"weight", "bias"}:
            given.append((name, "None"))
        else:
            return None
    if "input" not in takes or any(not n.isidentifier() or keyword.iskeyword(n) for n, _ in given):
        return None
    returns_nothing = inspect.signature(function).return_annotation in {None, "None"}
    if style == "returned" and returns_nothing:
        style = "in_place"
    alone = frozenset(n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY)
    return Calling(
        op=the_op.name,
        given=tuple(given),
        takes=takes,
        style=style,
        positional=alone,
        everything={n: None if p.default is p.empty else _default(p.default) for n, p in parameters.items()},
    )


def _default(value: object) -> str:
    """Return a default as text: a number's or None's; a tensor in any other place is left out by None."""
    return repr(value) if isinstance(value, int | float | str | bool | tuple) else "None"


def _scalars(the_op: Op) -> list[str]:
    shapes = the_op.shapes(2, 4, 0)
    return list(shapes.scalars) if shapes else []


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    every = inspect.signature(function).parameters
    return {n: p for n, p in every.items() if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}}
