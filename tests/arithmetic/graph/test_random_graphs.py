"""Random graphs against their normal forms: the rules composed, on numbers of their own formats.

`benchmarks/attack_rules.py` does the same for as long as one likes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from graphs_held import LEVELS, held, ranged

from verifier.arithmetic.graph import normal_form, rules, rules_of_constants, rules_of_patterns, signs
from verifier.arithmetic.graph.constants import format_of
from verifier.arithmetic.graph.rewriting import Rewrite
from verifier.arithmetic.graph.rules import RULES

SEEDS = range(42)
SHARE = {"E": SEEDS[::2], "EZ": SEEDS, "EZF": SEEDS[1::2], "EZFC": SEEDS}
"""All rules that may fire at the levels of few seeds fire at one of all, too."""


@pytest.mark.parametrize("claims", LEVELS)
def test_every_node_is_what_its_normal_form_says(claims: str) -> None:
    fired, compared = Counter[str](), 0
    for seed in SHARE[claims]:
        found = held(seed, claims)
        assert not found.faults, f"seed {seed}: {found.faults[0]}"
        fired += found.fired
        compared += found.compared
    assert compared > 4000 * len(SHARE[claims])
    if SHARE[claims] == SEEDS:
        never = {rule.name for rule in RULES if rule.claim in claims} - set(fired)
        assert never <= {"sign_of_fused"}  # contraction is tried before it


def test_all_values_are_finite_below_the_magnitude_that_is_found() -> None:
    bounded = 0
    for seed in range(10):
        for fault in ranged(seed):
            assert not fault, f"seed {seed}: {fault}"
            bounded += 1
    assert bounded > 5


def _with(monkeypatch: pytest.MonkeyPatch, name: str, **changes: object) -> None:
    changed = tuple(replace(rule, **changes) if rule.name == name else rule for rule in RULES)
    monkeypatch.setattr(normal_form, "RULES", changed)


def _rounded_products_of_constants(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        rules_of_patterns, "rounds_product", lambda _, factors: np.zeros(len(factors), dtype=np.bool_)
    )


def _larger_than_the_first(patch: pytest.MonkeyPatch) -> None:
    """Take the second of two constants beyond all numbers."""

    def apply(form, operation, edges):
        numbers = form.terms.numbers(edges[:, :2])
        beyond = (-numbers if operation.family == "max" else numbers) >= format_of(operation.result).maximum
        kept = edges[beyond.any(axis=1)].copy()
        kept[:, 0] = np.where(beyond[beyond.any(axis=1), 0], kept[:, 1], kept[:, 0])
        vanishes = kept[np.isnan(form.terms.numbers(kept[:, 0])), 0]
        return Rewrite(where=beyond.any(axis=1), into=None, edges=kept, vanishes=vanishes)

    _with(patch, "larger_than_all", apply=apply)


def _equal_terms_of_fused_sums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(normal_form, "ROUNDED", rules.ROUNDED - {"equal_terms"})


def _zero_times_infinity(patch: pytest.MonkeyPatch) -> None:
    """Take 0 * a for 0, and do not note that a is finite."""

    def apply(form, operation, edges):
        return replace(rules_of_constants.times_zero(form, operation, edges), vanishes=None)

    _with(patch, "times_zero", apply=apply)


def _signs_of_zero_sums(patch: pytest.MonkeyPatch) -> None:
    _with(patch, "sign_of_sum", claim="E")


def _means_beyond_their_elements(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(signs, "_LARGEST_SHARE", 2.0)


@pytest.mark.parametrize(
    ("broken", "claims", "seed"),
    [
        (_rounded_products_of_constants, "EZFC", 78),
        (_larger_than_the_first, "EZF", 36),
        (_equal_terms_of_fused_sums, "EZFC", 10),
        (_zero_times_infinity, "EZF", 13),
        (_means_beyond_their_elements, "EZ", 9),
        (_signs_of_zero_sums, "E", 0),
    ],
)
def test_a_wrong_rule_is_found(monkeypatch, broken, claims, seed) -> None:
    assert not held(seed, claims).faults
    broken(monkeypatch)
    found = (
        held(one, claims).faults for one in (seed, *SEEDS)
    )  # that of the first, if nobody changed the drawing
    assert any(found)
