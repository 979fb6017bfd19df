"""Lemma 4 in exact rationals: what errors of merged means do to the sum of increments, on any tree."""

import random
from fractions import Fraction

import pytest


def merged(source, nodes, mean):
    """Merge random pairs with random mean errors; return the sums of the identity and the root's error."""
    increments = products = Fraction(0)
    while len(nodes) > 1:
        (n_a, m_a), (n_b, m_b) = (nodes.pop(source.randrange(len(nodes))) for _ in range(2))
        n = n_a + n_b
        exact = (n_a * m_a + n_b * m_b) / n
        error = Fraction(source.randint(-50, 50), source.randint(1, 999))
        increments += n_a * n_b / n * (m_b - m_a) ** 2
        products += n * error * (2 * (exact - mean) + error)
        nodes.append((n, exact + error))
    return increments, products, nodes[0][1] - mean


@pytest.mark.parametrize("seed", range(40))
def test_increments_sum_to_the_squares_plus_error_products(seed):
    source = random.Random(seed)
    values = [Fraction(source.randint(-99, 99), source.randint(1, 9)) for _ in range(source.randint(2, 12))]
    mean = sum(values) / len(values)
    squares = sum((x - mean) ** 2 for x in values)
    increments, products, root = merged(source, [(Fraction(1), x) for x in values], mean)
    assert increments == squares + products - len(values) * root**2


@pytest.mark.parametrize("seed", range(10))
def test_the_identity_fails_without_the_root_error(seed):
    source = random.Random(seed)
    values = [Fraction(source.randint(-99, 99)) for _ in range(6)]
    mean = sum(values) / 6
    increments, products, root = merged(source, [(Fraction(1), x) for x in values], mean)
    assert root != 0
    assert increments != sum((x - mean) ** 2 for x in values) + products
