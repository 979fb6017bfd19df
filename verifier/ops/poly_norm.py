"""poly_norm: y = w0 * norm(x**3) + w1 * norm(x**2) + w2 * norm(x) + b, norm(u) = u / sqrt(mean(u**2) + eps).

Source: Zhuo, Wang, Zeng, Li, Zhou, Ma 2024, Polynomial Composition Activations (PolyNorm), with the weights
in the order in which Liger-Kernel takes them. See docs/explanation/bounds.md, T18.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.formats import Array
from verifier.ops import Op, special_values
from verifier.ops.rows import formula, global_parameters, trailing_dimensions
from verifier.ops.special_values import Expectation
from verifier.records.case import Scalars

TENSORS = ("input", "weight", "bias")
SIZES = {"weight": 3, "bias": 1}
POWERS = (3, 2, 1)
"""The power of each weight."""


def _powers(x: Value) -> tuple[Value, Value, Value]:
    """Return x**3, x**2 and x."""
    square = x * x
    return square * x, square, x


def roots(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return 1 / sqrt(mean(u**2) + eps) of each power u, which both passes read."""
    found = {}
    for power, u in zip(POWERS, _powers(t.x), strict=True):
        name = f"rstd_{power}"
        found[name] = k.share(k.rsqrt(k.mean(u * u) + t.further[formula.EPS]), name)
    return found


def _parts(k: Numbers, t: Terms) -> Iterator[tuple[int, Value, Value, Value]]:
    """Yield each power with its weight: (exponent, x**exponent, its root, its weight)."""
    for number, (power, u) in enumerate(zip(POWERS, _powers(t.x), strict=True)):
        yield power, u, t.further[f"rstd_{power}"], k.entry(t.weight, number)


def _added(k: Numbers, terms: list[Value]) -> Value:
    """Return the sum of three, from either end."""
    first, second, third = terms
    return k.either(first + second + third, third + second + first)


def forward(k: Numbers, t: Terms) -> Value:
    """Return the sum of w * (u * r) over the powers u of x with their roots r, and b."""
    terms = [k.either(w * (u * r), (w * u) * r, (w * r) * u) for _, u, r, w in _parts(k, t)]
    return _added(k, terms) + k.entry(t.bias, 0)


def canonical_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the sum of (g - n * mean(g * n)) * r * w * p * x**(p - 1), n = u * r; sums of g * n and g."""
    g, terms, norms = t.grad_output, [], []
    for power, u, r, w in _parts(k, t):
        norm = u * r
        along = (g - norm * k.share(k.mean(g * norm), f"mean_{power}")) * r
        norms.append(g * norm)
        if power == 1:
            terms.append(along * w)
            continue
        slope = k.constant(3.0) * (t.x * t.x) if power == 3 else k.either(k.constant(2.0) * t.x, t.x + t.x)
        terms.append(k.either(along * w * slope, along * (w * slope), w * (along * slope)))
    return {"grad_input": _added(k, terms), "grad_weight": k.totals(*norms), "grad_bias": k.totals(g)}


def expanded_backward(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the sum of w * (p * x**(p - 1) * r * g - p / N * x**(2 p - 1) * r**3 * s), s = sum(g * u).

    The gradients of the weights are sums over rows of r * s, that of the bias is one of g. Products are taken
    from the left, x**5 as four of them.
    """
    g, x, terms, rows = t.grad_output, t.x, [], []
    for power, u, r, w in _parts(k, t):
        s, factor = k.share(k.sum(g * u), f"sum_{power}"), k.constant(float(power))
        rows.append(k.share(r * s, f"share_{power}", product=True))
        cubed = k.share(r * r * r, f"cube_{power}", product=True)
        share = k.share(factor / k.count(), f"part_{power}")
        away = share
        for _ in range(2 * power - 1):
            away = away * x
        direct = factor
        for _ in range(power - 1):
            direct = direct * x
        if power == 3:
            direct = k.either(direct, factor * (x * x))
        ways = (direct * r * g - away * cubed * s, direct * r * g - away * (cubed * s))
        terms.append(w * k.either(*ways))
    return {
        "grad_input": _added(k, terms),
        "grad_weight": k.totals(*rows, of_rows=True),
        "grad_bias": k.totals(g),
    }


def rows_with(_scalars: Scalars, x: Array) -> Iterator[Expectation]:
    """Divide by an infinite root mean square: infinite elements are inf / inf."""
    yield from list(special_values.root_mean_square(_scalars, x))[:2]


CANONICAL = Form(name="canonical", forward=forward, backward=canonical_backward, shared=roots)
FORMS = {
    form.name: form
    for form in (CANONICAL, Form(name="expanded", forward=forward, backward=expanded_backward, shared=roots))
}

OP = Op(
    name="poly_norm",
    theorems=("T18",),
    summary="w0 * norm(x**3) + w1 * norm(x**2) + w2 * norm(x) + b over the trailing dimensions, norm(u) = "
    "u / sqrt(mean(u**2) + eps)",
    tensors=TENSORS,
    differentiable=TENSORS,
    parameters=(),
    wholes=("weight", "bias"),
    variants=trailing_dimensions.VARIANTS,
    forms=FORMS,
    shapes=partial(global_parameters.shapes, tensors=TENSORS, sizes=SIZES),
    canonical=partial(global_parameters.canonical, sizes=SIZES),
    problem=partial(global_parameters.problem, form=CANONICAL, sizes=SIZES),
    exact=formula.exact,
    bounds=formula.bounds,
    expected=formula.expected,
    extents=trailing_dimensions.extents,
    links=partial(global_parameters.links, sizes=SIZES),
    needs_variance=False,
    reads_eps=True,
    special=rows_with,
)
