"""Random expression graphs, each of which a normal form is held against, node by node.

A graph is drawn once and has many copies: these differ in their inputs and in their constants, so that a rule
applies to some of them and not to others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from graph_arithmetic import computed, power, sum_with_product

from verifier.arithmetic.formats import FORMATS, Array
from verifier.arithmetic.graph.constants import FULL_NAMES, encoded
from verifier.arithmetic.graph.graph import Builder, Graph, Ids

FORMATS_OF_INPUTS = {"a": "f32", "b": "f32", "c": "f32", "h": "f16", "i": "f16", "g": "bf16", "d": "f64"}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_PLAIN = {
    **{f"{family}.{{}}": 2 for family in ("add", "sub", "mul", "add.rn", "sub.rn", "mul.rn", "max", "min")},
    "fma.rn.{}": 3, "neg.{}": 1, "abs.{}": 1,
}  # fmt: skip
_OF_TWO = (
    "torch.add.f32",
    "torch.sub.f32",
    "torch.mul.f32",
    "torch.div.f32",
    "torch.add.f16",
    "torch.mul.bf16",
)
_QUOTIENTS = ("div.rn.f32", "div.full.f32", "div.full.ftz.f32", "div.approx.f32")
_FLUSHED = ("add.ftz.f32", "mul.ftz.f32", "max.NaN.f32", "max.ftz.f32")
_OF_ONE = (
    *("sqrt.rn.f32", "sqrt.approx.f32", "sqrt.approx.ftz.f32", "rcp.rn.f32", "rcp.approx.ftz.f32"),
    *("rsqrt.approx.f32", "rsqrt.approx.ftz.f32", "ex2.approx.f32", "ex2.approx.ftz.f32", "lg2.approx.f32"),
    *("tanh.approx.f32", "exp.cuda.f32", "log.cuda.f32", "tanh.libdevice.f32", "neg.ftz.f32", "abs.ftz.f32"),
)
_OTHERS = {
    **dict.fromkeys((*_QUOTIENTS, *_FLUSHED), ("f32",) * 3),
    **{name: (name[-3:].strip("."),) * 3 for name in _OF_TWO if "bf16" not in name},
    "torch.mul.bf16": ("bf16",) * 3,
    "torch.div.f16": ("f16",) * 3,
    "div.rn.f64": ("f64",) * 3,
    "sqrt.rn.f64": ("f64",) * 2,
    "fma.rn.ftz.f32": ("f32",) * 4,
    "torch.neg.f32": ("f32",) * 2,
    **dict.fromkeys(_OF_ONE, ("f32",) * 2),
    "cvt.f32.f16": ("f16", "f32"),
    "cvt.f32.bf16": ("bf16", "f32"),
    "cvt.f64.f32": ("f32", "f64"),
    "cvt.f64.f16": ("f16", "f64"),
    "cvt.rn.f16.f32": ("f32", "f16"),
    "cvt.rn.bf16.f32": ("f32", "bf16"),
    "cvt.rn.f32.f64": ("f64", "f32"),
    "cvt.rn.f16.f64": ("f64", "f16"),
    "torch.to.f32.f16": ("f16", "f32"),
    "torch.to.f16.f32": ("f32", "f16"),
    "within.f32": ("f32", "pred"),
    "and.pred": ("pred",) * 3,
    "or.pred": ("pred",) * 3,
    "xor.pred": ("pred",) * 3,
    "not.pred": ("pred",) * 2,
}
OPERATIONS: dict[str, tuple[str, ...]] = {
    **{name.format(held): (held,) * (arity + 1) for name, arity in _PLAIN.items() for held in FULL_NAMES},
    **_OTHERS,
}
"""Of each operation the formats of its operands, and of its result."""
COMMON = (
    "add.f32",
    "sub.f32",
    "mul.f32",
    "fma.rn.f32",
    "max.f32",
    "div.rn.f32",
    "cvt.f32.f16",
    "cvt.rn.f16.f32",
)


def edges_of(held: str) -> Array:
    """Return the numbers of a format at which arithmetic is special, of both signs."""
    of, ulp = FORMATS[FULL_NAMES[held]], 2.0 ** (1 - FORMATS[FULL_NAMES[held]].precision)
    root = 2.0 ** (int(np.log2(of.maximum)) // 2 + 1)  # whose square is infinite
    tiny = 2.0 ** (of.minimum_exponent // 2 - of.precision // 2)  # whose square is subnormal, or zero
    numbers = [0.0, 0.0, 1.0, 1.0, 0.5, 0.75, 2.0, 4.0, 3.0, 1 / 3, 1 + ulp, 1 - ulp / 2, 100.0, np.inf]
    numbers += [of.maximum, of.maximum / 2, of.smallest_normal, of.omega, of.smallest_normal - of.omega]
    numbers += [root, root / 2, tiny, tiny / 2**12, tiny * 3, of.smallest_normal * 2, 2.0**-10 / 3]
    kept = computed(f"cvt.rn.{held}.f64", np.array(numbers))
    return np.concatenate([kept, -kept])


@dataclass(kw_only=True)
class Step:
    """An operation that is done in all copies, or a leaf; `held` is the format of its results."""

    name: str
    held: str
    operands: tuple[int, ...]
    numbers: Array | None = None


@dataclass(kw_only=True)
class Drawn:
    """A drawn graph: its steps are computed in `copies` copies."""

    copies: int
    steps: list[Step] = field(default_factory=list)

    def graph(self, which: slice = slice(None)) -> Graph:
        """Return the graph of some copies, of which every node is an element of the output."""
        builder, nodes, copies = Builder(), list[Ids](), np.arange(self.copies)[which]
        for step in self.steps:
            if step.name == "input":
                nodes.append(builder.append(f"input:{step.held}", value=copies))
            elif step.numbers is not None:
                bits = encoded(step.held, step.numbers[which])
                nodes.append(builder.append(f"literal:{step.held}", value=bits))
            else:
                nodes.append(builder.append(step.name, *(nodes[one] for one in step.operands)))
        return builder.graph({"y": np.stack(nodes)}, FORMATS_OF_INPUTS)

    def values(self, inputs: dict[str, Array], which: slice = slice(None)) -> Array:
        """Return what each step computes in each copy of some at each point, (steps, copies, points)."""
        found, shape = list[Array](), next(iter(inputs.values()))[which].shape
        for step in self.steps:
            if step.name == "input":
                found.append(inputs[step.held][which])
            elif step.numbers is not None:
                found.append(np.broadcast_to(step.numbers[which, None], shape))
            elif step.name == "addmul.f32":
                first, *_ = (self.steps[one] for one in step.operands)
                factors = [found[one] for one in first.operands]
                found.append(_with_product(first.name, factors, found[step.operands[1]]))
            else:
                found.append(computed(step.name, *(found[one] for one in step.operands)))
        return np.stack(found)


def _with_product(name: str, factors: list[Array], other: Array) -> Array:
    """Return other plus a product that is not rounded, of a power of two or of two factors."""
    with np.errstate(all="ignore"):
        if name.startswith("exp."):
            return sum_with_product("f32", power(factors[0]), np.ones(()), other)
        return sum_with_product("f32", *factors, other)


class Drawing:
    """Draws the steps of a graph."""

    def __init__(self, random: np.random.Generator, *, copies: int, tame: bool) -> None:
        """Begin with inputs and constants. tame: constants and operations that keep values finite."""
        self.random, self.tame, self.drawn = random, tame, Drawn(copies=copies)
        for name, held in FORMATS_OF_INPUTS.items():
            self.drawn.steps.append(Step(name="input", held=name, operands=()))
            for _ in range(2 if held == "f32" else 1):
                self.constant(held, edges_of(held))
        self.formats = {
            place: FORMATS_OF_INPUTS.get(s.held, s.held) for place, s in enumerate(self.drawn.steps)
        }

    def constant(self, held: str, choices: Array) -> int:
        """Append a literal, another one in each copy."""
        choices = computed(f"cvt.rn.{held}.f64", choices)
        if self.tame:
            choices = np.append(choices, 1.0)
            choices = choices[(np.abs(choices) <= 100.0) & ((np.abs(choices) > 2.0**-30) | (choices == 0.0))]
        numbers = self.random.choice(choices, self.drawn.copies)
        if self.random.random() < 0.5:
            numbers = np.full_like(numbers, numbers[0])
        self.drawn.steps.append(Step(name="literal", held=held, operands=(), numbers=numbers))
        if hasattr(self, "formats"):
            self.formats[len(self.drawn.steps) - 1] = held
        return len(self.drawn.steps) - 1

    def op(self, name: str, *operands: int, held: str = "f32") -> int:
        """Append an operation."""
        self.drawn.steps.append(Step(name=name, held=held, operands=operands))
        self.formats[len(self.drawn.steps) - 1] = held
        return len(self.drawn.steps) - 1

    def any(self, held: str, *, data: bool = False) -> int:
        """Return a step of a format, often a late one. data: no literal."""
        known = [p for p, kept in self.formats.items() if kept == held]
        if data:
            known = [p for p in known if self.drawn.steps[p].numbers is None]
        if not known:
            return self.compared()
        inputs = [p for p in known if self.drawn.steps[p].name == "input"]
        choices = (inputs or known, known[-5:], known)[int(self.random.choice(3, p=(0.35, 0.35, 0.3)))]
        place = int(self.random.choice(choices))
        if held != "pred" and self.random.random() < 0.12:
            place = self.op(f"neg.{held}", place, held=held)
        return place

    def compared(self) -> int:
        """Append a comparison."""
        held = str(self.random.choice(["f32", "f32", "f32", "f16", "f64"]))
        flushed = ".ftz" if held == "f32" and self.random.random() < 0.1 else ""
        name = f"setp.{self.random.choice(COMPARISONS)}{flushed}.{held}"
        return self.op(name, self.any(held), self.any(held), held="pred")

    def step(self) -> None:
        """Append one operation, or one of the groups of which a rule or a bound is about."""
        kind = self.random.random()
        if kind < 0.6:
            group = GROUPS[int(self.random.integers(len(GROUPS)))]
            group(self)
            return
        if kind < 0.65:
            held = str(self.random.choice(["f32", "f32", "f16", "f64"]))
            self.op("ite", self.any("pred"), self.any(held), self.any(held), held=held)
            return
        names = COMMON if kind < 0.85 else tuple(OPERATIONS)
        name = str(self.random.choice(names))
        *operands, held = OPERATIONS[name]
        self.op(name, *(self.any(one) for one in operands), held=held)


def _either(draw: Drawing, *choices: int) -> tuple[int, ...]:
    return choices if draw.random.random() < 0.5 else choices[::-1]


def _parts(draw: Drawing) -> None:
    share = draw.constant("f32", np.array([0.5, 0.75, 2 / 3, 1.0, 1 / 3, 0.9, 1.5]))
    narrow = str(draw.random.choice(["", "f16", "bf16"]))
    x = draw.any("f32", data=True)
    if narrow and draw.random.random() < 0.8:
        x = draw.op(f"cvt.f32.{narrow}", draw.any(narrow, data=True))
    product = draw.op("mul.f32", *_either(draw, x, share))
    rest = draw.op("sub.f32", x, product)
    if draw.random.random() < 0.2:
        rest = draw.op("fma.rn.f32", x, draw.op("neg.f32", share), x)
    if not narrow:
        if draw.random.random() < 0.3:
            draw.op("fma.rn.f32", x, share, rest)
        draw.op("add.f32", *_either(draw, product, rest))
        return
    if draw.random.random() < 0.2:
        halves = (draw.op(f"cvt.rn.{narrow}.f32", one, held=narrow) for one in (product, rest))
        draw.op(f"add.{narrow}", *halves, held=narrow)
    wide = (
        draw.op(f"cvt.f32.{narrow}", draw.op(f"cvt.rn.{narrow}.f32", one, held=narrow))
        for one in (product, rest)
    )
    draw.op("add.f32", *_either(draw, *wide))


def _larger(draw: Drawing) -> None:
    held = str(draw.random.choice(["f32", "f32", "f16", "f64"]))
    a, b = draw.any(held), draw.any(held)
    difference = draw.op(f"sub.{held}", *_either(draw, a, b), held=held)
    if draw.random.random() < 0.5:
        difference = draw.op(f"add.{held}", draw.op(f"neg.{held}", b, held=held), a, held=held)
    zero = draw.constant(held, np.array([0.0, -0.0, 0.0, 1.0]))
    asked = draw.op(f"setp.gt.{held}", difference, zero, held="pred")
    draw.op("ite", asked, *_either(draw, a, b), held=held)


def _extreme(draw: Drawing) -> None:
    held = str(draw.random.choice(["f32", "f32", "f16", "bf16"]))
    name = f"{draw.random.choice(['max', 'min'])}.{held}"
    beyond = draw.constant(held, edges_of(held)[np.abs(edges_of(held)) >= FORMATS[FULL_NAMES[held]].maximum])
    draw.op(name, *_either(draw, beyond, draw.any(held)), held=held)
    others = edges_of(held) if draw.random.random() < 0.5 else np.array([np.inf, -np.inf])
    draw.op(name, *_either(draw, beyond, draw.constant(held, others)), held=held)


def _constants(draw: Drawing) -> None:
    held = str(draw.random.choice(["f32", "f32", "f16", "bf16"]))
    family = str(draw.random.choice(["add", "mul", "fma.rn", "fma.rn", "max", "sub"]))
    operands = [draw.constant(held, edges_of(held)) for _ in range(2)]
    if draw.random.random() < 0.3:
        operands[0] = draw.constant(held, np.array([np.inf, -np.inf]))
    elif family == "fma.rn" and draw.random.random() < 0.6:  # the product is rounded
        operands = [draw.constant(held, edges_of(held)[[9, 9, 10, 14, 19, 21, 23]]) for _ in range(2)]
    if family == "fma.rn":
        operands.append(draw.any(held))
    name = f"{family}.{held}"
    made = draw.op(name, *operands, held=held)
    if family == "fma.rn" and draw.random.random() < 0.5:
        draw.op(f"add.{held}", draw.op(f"mul.{held}", *operands[:2], held=held), operands[2], held=held)
    if draw.random.random() < 0.3:
        draw.op(f"max.{held}", made, draw.any(held), held=held)


def _with_constant(draw: Drawing) -> None:
    held = str(draw.random.choice(["f32", "f32", "f32", "f16", "f64"]))
    number = draw.constant(held, np.array([0.0, -0.0, 1.0, -1.0, 2.0, -4.0, 0.5, np.inf, -np.inf]))
    draw.op(
        f"fma.rn.{held}", number, draw.constant(held, np.array([0.0, -0.0, 3.0])), draw.any(held), held=held
    )
    family = str(draw.random.choice(["add", "mul", "fma", "sub", "div", "into", "setp", "torch"]))
    x, y = draw.any(held), draw.any(held)
    if family == "fma":
        draw.op(f"fma.rn.{held}", *_either(draw, number, x), y, held=held)
    elif family == "into":
        draw.op(f"fma.rn.{held}", x, y, number, held=held)
    elif family == "div":
        draw.op(f"div.rn.{held}", x, number, held=held)
    elif family == "setp":
        asked = draw.op(
            f"setp.{draw.random.choice(COMPARISONS)}.{held}", *_either(draw, number, x), held="pred"
        )
        draw.op("ite", asked, *_either(draw, number, x), held=held)
    elif family == "torch":
        draw.op("torch.sum.f32", draw.any("f32"), draw.constant("f32", np.array([0.0, -0.0, 1.0])))
    else:
        draw.op(f"{family}.{held}", *_either(draw, number, x), held=held)


def _fused(draw: Drawing) -> None:
    """The same sum fused, rounded, and of a product that is used elsewhere."""
    held = str(draw.random.choice(["f32", "f32", "f32", "f32", "f16", "f16", "bf16", "bf16", "f64"]))
    a, b, c = (draw.any(held) for _ in range(3))
    kind = draw.random.random()
    product = draw.op(f"mul.{held}", *_either(draw, a, b), held=held)
    if kind < 0.3:
        c = draw.op(f"neg.{held}", product, held=held)
    elif kind < 0.5:
        c = draw.op(f"mul.{held}", c, draw.any(held), held=held)
    made = draw.op(f"fma.rn.{held}", a, b, c, held=held)
    if kind > 0.8:
        other = draw.op(f"{draw.random.choice(['add', 'sub'])}.{held}", product, c, held=held)
        draw.op(f"sub.{held}", made, other, held=held)


def _decided(draw: Drawing) -> None:
    """A comparison of constants, and what it chooses."""
    held = str(draw.random.choice(["f32", "f32", "f16"]))
    both = (draw.constant(held, edges_of(held)) for _ in range(2))
    asked = draw.op(f"setp.{draw.random.choice(COMPARISONS)}.{held}", *both, held="pred")
    draw.op("ite", asked, draw.any(held), draw.any(held), held=held)
    draw.op("ite", draw.any("pred"), draw.any(held), draw.any(held), held=held)


def _quotient(draw: Drawing) -> None:
    a, b, c = (draw.any("f32") for _ in range(3))
    if draw.random.random() < 0.5:
        draw.op("div.full.f32", draw.op("neg.f32", a), b)
    draw.op("divfma.full.f32", a, b, c)


def _power(draw: Drawing) -> None:
    x = draw.any("f32")
    if draw.random.random() < 0.6:
        x = draw.constant("f32", np.array([0.0, -0.0, -np.inf, -np.inf, 1.0]))
    names = ("ex2.approx.f32", "ex2.approx.ftz.f32", "exp.cuda.f32", "tanh.approx.f32", "tanh.libdevice.f32")
    name = str(draw.random.choice(names))
    made = draw.op(name, x)
    draw.op("ex2.approx.f32", draw.constant("f32", np.array([0.0, -np.inf, -np.inf])))
    if name == "exp.cuda.f32":
        draw.op("addmul.f32", made, draw.any("f32"))


def _softmax(draw: Drawing) -> None:
    """A sum of powers of what is left of the largest; perhaps not of all."""
    count = int(draw.random.integers(1, 4))
    rows = [draw.any("f32", data=True) for _ in range(count)]
    largest = rows[0]
    for one in rows[1 : count - int(draw.random.random() < 0.15)]:
        largest = draw.op("max.f32", *_either(draw, largest, one))
    scale = draw.constant("f32", np.array([2.0, 1.4426950216293335, 1.0, -2.0, 0.0]))
    total = -1
    for one in rows:
        rest = draw.op("sub.f32", *((one, largest) if draw.random.random() < 0.95 else (largest, one)))
        if draw.random.random() < 0.3:
            made = draw.op("exp.cuda.f32", rest)
        else:
            made = draw.op("ex2.approx.ftz.f32", draw.op("mul.f32", *_either(draw, rest, scale)))
        kind = draw.random.random()
        weight = draw.constant("f32", np.array([1.0, 2.0, 3.0, 0.0, -1.0])) if kind < 0.3 else -1
        if total < 0:
            total = made if weight < 0 else draw.op("mul.f32", weight, made)
        elif weight >= 0:
            total = draw.op("fma.rn.f32", *_either(draw, weight, made), total)
        else:
            total = draw.op("add.f32", *_either(draw, total, made))
    draw.op("rcp.rn.f32", total)


def _welford(draw: Drawing) -> None:
    x, m, total = draw.any("f32", data=True), 1, draw.any("f32", data=True)
    while m in {1, x}:  # 1 is a literal
        m = draw.any("f32", data=True)
    if draw.random.random() < 0.2:
        m = draw.op("mul.f32", m, total)
    turned = draw.random.random() < 0.2
    difference = draw.op("sub.f32", *((m, x) if turned else (x, m)))
    part = draw.constant("f32", np.array([0.5, 0.25, 0.75, 0.9, -0.5, 2.0, 4.0, 3.0]))
    kind = int(draw.random.integers(5))
    if kind == 0:
        mean = draw.op("fma.rn.f32", *_either(draw, difference, part), m)
    elif kind == 1:
        mean = draw.op("divfma.full.f32", difference, part, m)
    else:
        name = ("mul.f32", "div.full.f32", "div.rn.f32")[kind - 2]
        operands = _either(draw, difference, part) if kind == 2 else (difference, part)
        mean = draw.op("add.f32", *_either(draw, m, draw.op(name, *operands)))
    rest = draw.op("sub.f32", *((mean, x) if draw.random.random() < 0.2 else (x, mean)))
    if draw.random.random() < 0.3:
        rest = draw.op("mul.f32", rest, draw.constant("f32", np.array([2.0, 3.0, 0.5, -1.0])))
    square = draw.op("mul.f32", difference, difference)
    draw.op("fma.rn.f32", *_either(draw, difference, rest), square)
    draw.op("mul.f32", *_either(draw, difference, rest))


def _clamped(draw: Drawing) -> None:
    x = draw.any("f32", data=True)
    number = draw.constant("f32", np.array([0.0, -0.0, 1e-5, 1.0, -1.0]))
    below = draw.op(f"setp.{draw.random.choice(['lt', 'le', 'gt'])}.f32", x, number, held="pred")
    clamped = draw.op("ite", below, *_either(draw, number, x))
    draw.op(str(draw.random.choice(["sqrt.rn.f32", "rsqrt.approx.f32", "sqrt.approx.f32"])), clamped)
    square = draw.op("mul.f32", x, x)
    draw.op("sqrt.rn.f32", draw.op("add.f32", *_either(draw, square, number)))


def _again(draw: Drawing) -> None:
    """The same operation, its operands written in another way."""
    x, y = draw.any("f32", data=True), draw.any("f32")
    first = draw.op("add.f32", x, y)
    second = draw.op("neg.f32", draw.op("sub.f32", draw.op("neg.f32", x), y))
    draw.op(str(draw.random.choice(["sub.f32", "add.f32", "mul.f32"])), *_either(draw, first, second))
    half = draw.any("f16", data=True)
    wide = draw.op("cvt.f32.f16", half)
    draw.op("cvt.rn.f16.f32", draw.op("mul.f32", wide, wide), held="f16")
    draw.op("mul.f16", half, half, held="f16")
    draw.op("cvt.rn.f16.f32", draw.op("abs.f32", draw.op("neg.f32", wide)), held="f16")


def _guarded(draw: Drawing) -> None:
    """What softmaxes under masks do of a row without elements: a choice by an infinity, and one by a zero."""
    held = str(draw.random.choice(["f32", "f32", "f64"]))
    x, infinite = draw.any(held, data=True), draw.constant(held, np.array([np.inf, -np.inf]))
    zero, other = draw.constant(held, np.array([0.0, -0.0])), draw.constant(held, np.array([1.0, 0.0, 2.0]))
    asks = draw.random.choice(["eq", "equ", "ne", "neu"], 2)
    asked = draw.op(f"setp.{asks[0]}.{held}", *_either(draw, x, infinite), held="pred")
    draw.op("ite", asked, *_either(draw, other, x), held=held)
    total = draw.any(held, data=True)
    asked = draw.op(f"setp.{asks[1]}.{held}", *_either(draw, total, zero), held="pred")
    below = draw.op("ite", asked, *_either(draw, other, total), held=held)
    draw.op(f"div.rn.{held}", *_either(draw, zero, total), held=held)
    draw.op(f"div.rn.{held}", x, below, held=held)


def _unknown(draw: Drawing) -> None:
    """What is no operation on these formats: it equals nothing but itself."""
    x = draw.op("cvt.f32.bf16", draw.any("f16"))
    draw.op("sub.f32", x, draw.op("cvt.f32.bf16", draw.any("f16")))


GROUPS: tuple[Callable[[Drawing], None], ...] = (
    *(_parts, _parts, _larger, _extreme, _extreme, _constants, _constants, _with_constant, _with_constant),
    *(_fused, _fused, _unknown, _decided, _quotient, _power, _softmax, _softmax, _welford, _welford),
    *(_clamped, _again, _guarded, _guarded),
)


def drawn(seed: int, *, copies: int = 16, tame: bool = False) -> Drawn:
    """Return the graph of a seed."""
    draw = Drawing(np.random.default_rng([seed, int(tame)]), copies=copies, tame=tame)
    for step in range(int(draw.random.integers(2, 6))):
        if step < 2:  # each group in turn
            GROUPS[(seed + 9 * step) % len(GROUPS)](draw)
        else:
            draw.step()
    return draw.drawn


def inputs_of(seed: int, copies: int, points: int = 40) -> dict[str, Array]:
    """Return numbers for all inputs in all copies, (copies, points): edges, all magnitudes, often equal."""
    random = np.random.default_rng([seed, 7])
    found = dict[str, Array]()
    for name, held in FORMATS_OF_INPUTS.items():
        numbers = random.normal(size=(copies, points))
        wide = np.ldexp(numbers, random.integers(-16, 16, numbers.shape) * (1 if held == "f16" else 8))
        drawn_from = random.choice(edges_of(held), numbers.shape)
        drawn_from[random.random(numbers.shape) < 0.01] = np.nan
        kind = random.random(numbers.shape)
        numbers = np.where(kind < 0.35, numbers, np.where(kind < 0.5, wide, drawn_from))
        calm = np.arange(points) < points // 3
        numbers = np.where(calm & ~(np.abs(numbers) < 100.0), 1.5, numbers)
        for earlier, of in FORMATS_OF_INPUTS.items():
            if of == held and earlier in found:
                same = random.random(numbers.shape)
                numbers = np.where(
                    same < 0.25, found[earlier], np.where(same < 0.35, -found[earlier], numbers)
                )
        with np.errstate(all="ignore"):
            found[name] = computed(f"cvt.rn.{held}.f64", numbers)
    return found
