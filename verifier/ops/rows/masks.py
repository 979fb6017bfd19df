"""Masks over scores, (..., rows, columns): where they lie, what they leave of a row, what cases have.

An element takes part unless the boolean mask is False there, what is added to it is -inf, or a causal op
leaves it out. A mask has the input's shape, or one that torch broadcasts to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch

from strategies.formats import FORMATS
from strategies.hazards import discover
from strategies.values import Values
from verifier.arithmetic.formats import Array
from verifier.ops import Shapes, Tensors
from verifier.ops.rows.compose_bounds import case_array
from verifier.ops.rows.two_factors import four_factors, three_factors, two_factors
from verifier.ops.special_values import Expectation, Mask
from verifier.oracle.softmax.problem import ADDED, SoftmaxProblem
from verifier.oracle.softmax.solve import Masked, collect_softmax
from verifier.records.case import Case, Extents, Scalars
from verifier.records.subject import Claim, Subject

MASK = "mask"
"""Boolean, as torch's scaled_dot_product_attention has it: True takes part."""
DIAGONAL = "diagonal"
"""Of a causal op: column j of the last axes takes part in row i if j <= i + diagonal, as in torch.tril."""
TENSORS = ("input", MASK, ADDED)
ORDERED = ("queries", "columns")
"""Links of a causal op whose places have an order: none may change places with another."""
NEAR, FAR = 0.125, 0.1
"""Scales: of heads of 64 elements, a power of two; and one that no format holds."""


def shapes(rows: int, columns: int, variant: int, *, causal: bool) -> Shapes:
    """Lay out scores as a matrix, as (batch, rows, columns) and as (batch, heads, rows, columns).

    Where rows have three factors, samples and heads are several in one of them; where they have four, one
    more axis leads.

    Masks are whole, one for all rows of a sample (padding), one for all samples and heads, or one for all
    heads of a sample. What is added has another shape in some: of each head beside a mask for all heads, of
    all rows beside that of a padding.
    """
    before, after = two_factors(rows)
    heads, batch = (1, before, after, columns), (before, after, columns)
    deep = (*(four_factors(rows) or three_factors(rows)), columns)
    plain = (1, rows, columns) if causal else (rows, columns)
    full, mask, scale, diagonal = (
        (plain, plain, 1.0, 0),
        (heads, (after, columns), 1.0, 0),
        (batch, (before, 1, columns), 1.0, 0),
        (plain, plain, NEAR, 0),
        (deep, (deep[0], *(1,) * (len(deep) - 3), *deep[-2:]), FAR, 0),
        (batch, batch, NEAR, 0),
        (plain, plain, 1.0, columns - rows),
        (batch, (before, 1, columns), NEAR, 2),
    )[variant]
    added = {1: heads, 2: (after, columns), 4: (*deep[1:-2], 1, columns)}.get(variant, mask)
    tensors = {"input": full, MASK: mask, ADDED: added, "grad_output": full}
    scalars = {"scale": scale, DIAGONAL: diagonal} if causal else {"scale": scale}
    return Shapes(tensors=tensors, scalars=scalars)


FULLEST = 6
"""The variant of a causal op whose last row has all elements."""
DIAGONALS = ((257, 257, 0), (513, 513, 0))
"""Shapes of a causal op: its last rows have two tiles of 256, and of 512, or several smaller ones."""


def variants(*, causal: bool) -> int:
    """Return how many variants there are: only a causal op has diagonals."""
    return 8 if causal else 6


def takes(subject: Subject, shapes: Shapes) -> bool:
    """Return whether a kernel has room for a scale that is not 1, and for another diagonal than the first."""
    usual = {"scale": 1.0, DIAGONAL: 0}
    return all(
        name in subject.signature or shapes.scalars.get(name, own) == own for name, own in usual.items()
    )


def canonical(extents: Extents, _name: str, array: Array) -> Array:
    """Bring an argument, output or gradient into canonical rows; what is broadcast is repeated."""
    return np.broadcast_to(array, extents.input_shape).reshape(extents.rows, extents.columns)


def extents(tensors: Tensors, scalars: Scalars) -> tuple[int, int, Scalars]:
    """Read rows and columns off the tensors."""
    x = tensors["input"]
    assert x is not None
    return math.prod(x.shape[:-1]), x.shape[-1], scalars


def links(tensors: Tensors, _scalars: Scalars, *, causal: bool) -> Mapping[str, list[tuple[str, int]]]:
    """Name the axes that shrink together: an axis along which a mask is broadcast stays as it is."""
    x = tensors["input"]
    assert x is not None
    found = {}
    for axis in range(-x.dim(), 0):
        name = ORDERED[axis + 2] if causal and axis >= -2 else f"axis {axis + x.dim()}"
        found[name] = [
            (n, axis + t.dim())
            for n in (*TENSORS, "grad_output")
            if (t := tensors.get(n)) is not None and t.dim() >= -axis and t.shape[axis] == x.shape[axis]
        ]
    return found


# -- what cases have -----------------------------------------------------------------------------------


def _random(random: np.random.Generator, rows: int, columns: int) -> Mask:
    there = random.random((rows, columns)) < 0.7
    there[:, 0] = True
    return np.asarray(there)


def _padding(random: np.random.Generator, rows: int, columns: int) -> Mask:
    lengths = random.integers(1, columns + 1, (rows, 1))
    return np.asarray(np.arange(columns) < lengths)


def _window(random: np.random.Generator, rows: int, columns: int) -> Mask:
    starts, places = random.integers(0, columns, (rows, 1)), np.arange(columns)
    return np.asarray((places == 0) | ((places >= starts) & (places < starts + 5)))


def _single(random: np.random.Generator, rows: int, columns: int) -> Mask:
    chosen = random.integers(0, columns, (rows, 1)) * random.integers(0, 2, (rows, 1))
    return np.asarray(np.arange(columns) == chosen)


def _empty_rows(random: np.random.Generator, rows: int, columns: int) -> Mask:
    return np.asarray(_random(random, rows, columns) & (random.random((rows, 1)) < 0.6))


PATTERNS = (_random, _padding, _single, _window, _empty_rows)
"""Some elements anywhere and the first; the first ones; one alone; a few neighbours and the first; rows
without any. The first element is that which a causal op always keeps."""
OF_ADDEND = (_random, _empty_rows, _window)
"""The same of what is added, in another number: with a mask, each meets each."""
BLOCKED = (-math.inf, -1e4, -math.inf, None)
"""What is added where an element is left out, in usual models: -inf, a large number, the least of a dtype."""

DrawsMask = Callable[[np.random.Generator, int, int], Mask]


def _pattern(patterns: tuple[DrawsMask, ...], values: Values, shape: tuple[int, ...]) -> Mask:
    """Return which elements take part; the recipe's seed decides."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if not rows or not columns:
        return np.ones(shape, dtype=np.bool_)
    random = np.random.default_rng(values.seed)
    return patterns[values.seed % len(patterns)](random, rows, columns).reshape(shape)


def drawn_mask(values: Values, shape: tuple[int, ...], _dtype: str) -> torch.Tensor:
    """Make a boolean mask of a recipe."""
    return torch.from_numpy(_pattern(PATTERNS, values, shape))


def drawn_addend(values: Values, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Make what is added to scores: zeros or numbers, and what blocks an element."""
    numbers = values.fill(shape, dtype)
    if not discover()[values.hazard].finite:
        return numbers
    turn = values.seed // len(OF_ADDEND)
    least = BLOCKED[turn % len(BLOCKED)]
    blocked = -FORMATS[dtype].maximum if least is None else least
    numbers = numbers if turn % 2 else torch.zeros_like(numbers)
    there = torch.from_numpy(_pattern(OF_ADDEND, values, shape))
    return torch.where(there, numbers, torch.full_like(numbers, blocked))


def complete(
    tensors: Tensors, scalars: Scalars, _subject: Subject, *, causal: bool, logarithm: bool
) -> dict[str, torch.Tensor | None]:
    """Let no gradient come to a logarithm of -inf: no loss of a finite value has one."""
    gradient = tensors.get("grad_output")
    if not logarithm or gradient is None:
        return dict(tensors)
    there = torch.from_numpy(np.array(kept(tensors, scalars, causal=causal)))
    added = tensors.get(ADDED)
    if added is not None:
        there = there & ~torch.isneginf(added)
    x = tensors["input"]
    assert x is not None
    there = there & ~torch.isneginf(x)
    return {**tensors, "grad_output": torch.where(there, gradient, torch.zeros_like(gradient))}


# -- what they leave of a row --------------------------------------------------------------------------


def kept(tensors: Tensors, scalars: Scalars, *, causal: bool) -> Mask:
    """Return which elements the boolean mask and the diagonal keep, in the input's shape."""
    x, mask = tensors["input"], tensors.get(MASK)
    assert x is not None
    there = np.ones(tuple(x.shape), dtype=np.bool_)
    if mask is not None:
        there = there & (mask.numpy() != 0)
    if causal:
        queries, columns = x.shape[-2:]
        there = there & np.tri(queries, columns, scalars[DIAGONAL], dtype=np.bool_)
    return there


def compared(case: Case, *, causal: bool) -> torch.Tensor:
    """Return the scores, -inf where an element takes no part: NaN and infinities reach that."""
    x, added = case.given["input"].double(), case.tensors.get(ADDED)
    scaled = torch.where(x.isinf(), x, x * float(case.scalars["scale"]))
    scores = scaled if added is None else scaled + added.double()
    there = torch.from_numpy(np.array(kept(case.tensors, case.scalars, causal=causal)))
    return torch.where(there, scores, torch.full_like(scores, -math.inf))


def problem(case: Case, *, causal: bool, logarithm: bool) -> SoftmaxProblem:
    """Pose the op with its VJP to the oracle."""
    arrays = {name: case_array(case, name) for name in ("input", "grad_output", ADDED)}
    rows = {n: None if a is None else canonical(case, n, a) for n, a in arrays.items()}
    there = kept(case.tensors, case.scalars, causal=causal)
    return SoftmaxProblem(
        input=rows["input"],
        grad_output=rows["grad_output"],
        added=rows[ADDED],
        kept=canonical(case, MASK, there.astype(np.float64)),
        scale=float(case.scalars["scale"]),
        logarithm=logarithm,
    )


LARGE = 1024.0
"""Of a score's parts: up to here no format's roundings move a score so far that every power of a row is 0."""


def _moderate(case: Case, operands: Masked) -> Mask:
    """Return the rows, (rows, 1), whose sum is positive in every kernel: of no other is a zero certain.

    A score that overflows may leave nothing of a row, or NaN. Numbers that mask lie far below the others.
    """
    assert operands.x is not None
    added = np.zeros_like(operands.x) if operands.added is None else operands.added
    product = np.abs(operands.x * float(case.scalars["scale"])) <= LARGE
    usual = product & (np.abs(added) <= LARGE)
    sound = operands.absent | usual | (product & (added < -8.0 * LARGE))
    rows = np.asarray(sound.all(axis=1) & (usual & ~operands.absent).any(axis=1))
    if operands.gradient is not None:
        rows &= np.abs(operands.gradient).sum(axis=1) <= FORMATS[case.dtype].maximum / 8.0
    return rows[:, None]


def certain(case: Case, claim: Claim, *, causal: bool, logarithm: bool) -> Iterator[tuple[str, Expectation]]:
    """Yield, by result, what elements that take no part are, bit for bit but for the sign of zero.

    In rows without an element it is what the declaration says.
    """
    operands = collect_softmax(problem(case, causal=causal, logarithm=logarithm))
    absent, empty = operands.absent, operands.absent.all(axis=1, keepdims=True)
    nothing = partial(np.equal, -math.inf if logarithm else 0.0)
    moderate = _moderate(case, operands)
    beside = absent & operands.finite[:, None] & moderate
    yield "output", (f"what is masked out is {'-inf' if logarithm else '0'}", beside, nothing)
    whole = np.broadcast_to(empty, absent.shape)
    if claim.fully_masked == "nan":
        yield "output", ("a fully masked row is NaN, as declared", whole, np.isnan)
    else:
        words = "a fully masked row is " + ("-inf" if logarithm else "0") + " throughout, as declared"
        yield "output", (words, whole, nothing)
    if operands.gradient is None:
        return
    sound = np.isfinite(canonical(case, "grad_output", _gradient(case))).all(axis=1, keepdims=True)
    beside = absent & operands.finite_gradient[:, None] & moderate
    yield "grad_input", ("the gradient of what is masked out is 0", beside, partial(np.equal, 0.0))
    if claim.fully_masked == "nan":
        yield "grad_input", ("the gradient of a fully masked row is 0 or NaN", whole & sound, _zero_or_nan)
    else:
        yield "grad_input", ("the gradient of a fully masked row is 0", whole & sound, partial(np.equal, 0.0))


def _gradient(case: Case) -> Array:
    found = case_array(case, "grad_output")
    assert found is not None
    return found


def _zero_or_nan(values: Array) -> Mask:
    return np.asarray((values == 0) | np.isnan(values))


def special(_scalars: Scalars, scores: Array) -> Iterator[Expectation]:
    """Spread NaN and +inf over what takes part in a row; scores: as `compared` has them."""
    there = ~np.isneginf(scores)
    for word, held in (("NaN", np.isnan(scores)), ("+inf", np.isposinf(scores))):
        rows = np.broadcast_to(held.any(axis=1, keepdims=True), scores.shape)
        yield f"a row in which {word} takes part is NaN where anything does", rows & there, np.isnan
