"""Rows without columns, no rows and single values: exact results and bounds exist, and a page names them."""

from pathlib import Path

import numpy as np
import pytest
from rounded_ops import declared, truth_of

from strategies.values import Values
from verifier.cases.recipe import Recipe
from verifier.ops import op, ops

NAMES = [name for name, known in ops().items() if not known.own]


def truths(name, rows, columns):
    """Yield the truth of every variant that exists for these extents."""
    subject = declared(name, variance="rms" if "rms" in name else "two_pass")
    for variant in range(op(name).variants):
        recipe = Recipe(
            rows=rows, columns=columns, variant=variant, input=Values(seed=1), grad_output=Values(seed=2)
        )
        truth = truth_of(subject, "float32", "float32", recipe)
        if truth is not None:
            yield truth


@pytest.mark.parametrize("extents", [(0, 4), (4, 0), (0, 0), (1, 1), (3, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_every_result_of_an_extreme_shape_has_the_shape_of_its_bound(name, extents):
    seen = 0
    for truth in truths(name, *extents):
        for result, bounded in truth.bounds.items():
            exact = truth.exact[result]
            assert np.broadcast_shapes(exact.shape, bounded.bound.shape) == np.shape(exact.high)
            seen += 1
    assert seen or "softmax" in name or extents == (0, 0)


PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "special-values.md"
EXTENTS = (("no rows", (0, 4)), ("no columns", (2, 0)), ("one column", (2, 1)))
JUDGED = (
    *("output", "new_residual", "running_mean", "running_var"),
    *("grad_input", "grad_residual", "grad_alpha", "grad_weight", "grad_bias"),
)


def what_it_is(truth, result):
    """Name the exact value of a result in words, or return None where it is an ordinary one."""
    values = truth.exact[result].high
    if values.size == 0:
        return "empty"
    if np.isnan(values).all():
        return "none"
    for word, constant in (("0", 0.0), ("1", 1.0)):
        if (values == constant).all():
            return word
    bias = getattr(truth.solved.problem, "bias", None)
    plain = bias is not None and result == "output" and (values == bias).all()
    return "bias" if plain else None


def extreme(name, extents):
    """Say what the exact results of an extreme shape are."""
    subject = declared(name, variance="rms" if "rms" in name else "two_pass")
    given = {n: Values(seed=k) for k, n in enumerate(("input", "weight", "bias", "grad_output"))}
    truth = truth_of(subject, "float32", "float32", Recipe(rows=extents[0], columns=extents[1], **given))
    given = (*op(name).outputs, *(f"grad_{n}" for n in op(name).differentiable))
    found = {r: what_it_is(truth, r) for r in JUDGED if r in given and r in truth.exact}
    return "; ".join(f"{r} {word}" for r, word in found.items() if word) or "nothing special"


def table():
    """Yield the lines of the page's tables as the oracle and the ops give them."""
    yield "| op | " + " | ".join(words for words, _ in EXTENTS) + " |"
    yield "|---|---|---|---|"
    for name in NAMES:
        yield f"| {name} | " + " | ".join(extreme(name, extents) for _, extents in EXTENTS) + " |"
    yield ""
    yield "| op | NaN and infinities in a row of the input |"
    yield "|---|---|"
    for name in NAMES:
        if "output" in op(name).outputs:
            said = [words for words, *_ in op(name).special({}, np.zeros((1, 1)))]
            yield f"| {name} | {'; '.join(said)} |"


def test_the_page_of_special_values_says_what_oracle_and_ops_say():
    wanted = "\n".join(table())
    assert wanted in PAGE.read_text(encoding="utf-8"), wanted
