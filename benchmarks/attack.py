"""Attack the theorems for longer than CI does; count checks and violations, show tightness.

    python benchmarks/attack.py --minutes 6 --seed 1 [--only NAME]

Six attacks share the time. Of mean and variance: `exhaust` (every row of tiny formats), `strike` (families of
hostile rows up to N = 8192 in fp32, fp16 and bf16), `double` (the same in fp64) and `search` (evolution). Of
what follows: `compose` (outputs and gradients of every op, executed in rounded arithmetic) and `control`
(torch's own CPU kernels). The exit status is 1 if any bound is exceeded.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from attack_composed import Attacked, composed, controls

from verifier.arithmetic.formats import FORMATS, Arithmetic, ieee
from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.trees.tree import Tree, any_order, pairwise, sequential, tile, torch_cascade, tree
from verifier.bounds.variance import Reduction, algorithms
from verifier.bounds.variance.attack import Utilisation, evolve, families, utilisation
from verifier.bounds.variance.options import chosen_options, option_rules
from verifier.bounds.variance.tiny_formats import (
    all_rows,
    grid,
    statistics_of_small,
    tiny,
    utilisation_of_small,
)

LENGTHS = (2, 3, 5, 8, 32, 100, 512, 1024, 4099, 8192)
DTYPES = ("float32", "float16", "bfloat16")
DOUBLE_SCALES = (2.0**-1060, 2.0**-1020, 2.0**-509, 2.0**-255, 1.0, 2.0**255, 2.0**505)
"""From rows that are subnormal to rows whose squares nearly overflow."""


@dataclass(kw_only=True)
class Tally:
    """Checks, violations and the largest utilisations by name (of an algorithm or an op) and label.

    of: what is compared, in words; an utilisation of each belongs to every key.
    """

    of: str = "variance, of mean"
    checks: int = 0
    violations: list[str] = field(default_factory=list)
    worst: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)

    def add(self, key: tuple[str, str], found: tuple[float, ...], checks: int, what: object) -> None:
        """Count one comparison of `checks` numbers; key: name and label."""
        self.checks += checks
        before = self.worst.get(key, (0.0,) * len(found))
        self.worst[key] = tuple(map(max, before, found))
        if not max(found) <= 1.0:
            self.violations.append(f"{key}: error/bound {', '.join(f'{f:.6g}' for f in found)} with {what}")


def declarations(name: str, random: np.random.Generator, arithmetic: Arithmetic, count: int) -> Reduction:
    """Draw a declaration of an algorithm; orders of one element a step only for short rows."""
    trees: list[Tree] = [
        pairwise(),
        tree(lanes=4 if count < 64 else 32),
        tree(lanes=16 if count < 64 else 256),
        tree(lanes=12),
        tree(chunks=3 if count < 64 else 48),
        tree(lanes=4 if count < 64 else 32, combine="sequential"),
        tile(block=16 if count < 256 else 512, threads=4 if count < 256 else 128),
        torch_cascade(lanes=4 if count < 256 else 16),
    ]
    if count <= 1024:
        trees += [sequential(), any_order()]
    drawn: dict[str, Any] = {
        "arithmetic": replace(arithmetic, flush_to_zero=bool(random.random() < 0.3)),
        "tree": trees[random.integers(len(trees))],
        "divide_by_n": random.choice(["division", "reciprocal"]),
        "mean_contraction": random.choice(["none", "uniform", "mixed"]),
        "merge": random.choice(["increment", "weighted", "pooled"]),
        "corrects_mean": bool(random.integers(2)),
        "clamp": bool(random.integers(2)),
        "mean_cast": None if random.random() < 0.85 else "bfloat16",
        "shift_index": int(random.integers(count)),
    }
    own = {option: drawn.pop(option) for option in ("merge", "corrects_mean", "shift_index")}
    own = {option: value for option, value in own.items() if option in option_rules(name)}
    return Reduction(**drawn, options=chosen_options(name, own))


def record(tally: Tally, name: str, label: str, found: Utilisation, what: object) -> None:
    """Count a comparison of rows with their bounds."""
    worst = (float(found.variance.max(initial=0.0)), float(found.mean.max(initial=0.0)))
    tally.add((name, label), worst, 2 * int(found.covered.sum()), what)


def exhaust(tally: Tally, seconds: float, random: np.random.Generator) -> None:
    """Try every row of tiny formats, smallest configurations first."""
    shapes = [(p, m, low, b, n) for n in (2, 3, 4) for p in (3, 4, 5, 6) for m, low, b in _ranges(n, p)]
    end = time.monotonic() + seconds
    for precision, minimum, lowest, binades, count in shapes:
        held = tiny(precision, minimum)
        values = all_rows(grid(held, lowest, binades), count)
        statistics = statistics_of_small(values)
        for name in algorithms():
            if time.monotonic() > end:
                return
            claim = declarations(name, random, Arithmetic(format=held), count)
            claim = replace(claim, mean_cast=None)
            found = utilisation_of_small(name, values, claim, statistics)
            record(tally, name, f"N={count}", found, claim)


def _ranges(count: int, precision: int) -> list[tuple[int, int, int]]:
    """Return (smallest normal exponent, lowest binade, binades) that give at most about 10**6 rows."""
    return [
        (m, low, b)
        for m, low, b in itertools.product((-2, -4), (-4, -2, 0), (1, 2, 4, 6))
        if (2**precision * b) ** count <= 2_000_000
    ]


def strike(tally: Tally, seconds: float, random: np.random.Generator) -> None:
    """Try families of rows with drawn declarations, every dtype and length in turn."""
    end = time.monotonic() + seconds
    for count, dtype in itertools.cycle(itertools.product(LENGTHS, DTYPES)):
        smallest = FORMATS[dtype].smallest_normal
        scale = float(random.choice([1.0, 1.0, 4 * smallest**0.5, 4 * smallest, smallest**0.25]))
        if not _strike_once(tally, end, random, count, dtype, scale):
            return


def double(tally: Tally, seconds: float, random: np.random.Generator) -> None:
    """Try families of rows in float64 with drawn declarations, every length and scale in turn."""
    end = time.monotonic() + seconds
    for count, scale in zip(itertools.cycle(LENGTHS), itertools.cycle(DOUBLE_SCALES), strict=False):
        if not _strike_once(tally, end, random, count, "float64", scale):
            return


def _strike_once(  # noqa: PLR0917
    tally: Tally, end: float, random: np.random.Generator, count: int, dtype: str, scale: float
) -> bool:
    """Try every family and algorithm; return whether there was time for all."""
    for family, values in families(random, count, 2, FORMATS[dtype], scale):
        with np.errstate(all="ignore"):
            statistics = exact_statistics(values)
        for name in algorithms():
            if time.monotonic() > end:
                return False
            claim = declarations(name, random, ieee(dtype), count)
            if dtype == "float64":  # no fused operation of it is simulated, and most scales exceed bfloat16
                claim = replace(claim, mean_contraction="none", mean_cast=None)
            with np.errstate(all="ignore"):  # at the ends of the range, where there is no theorem
                found = utilisation(name, values, claim, statistics)
            record(tally, name, f"N={count}", found, (family, scale, claim))
    return True


def search(tally: Tally, seconds: float, random: np.random.Generator) -> None:
    """Search for the worst rows by mutation, short rows first."""
    end = time.monotonic() + seconds
    for count, name in itertools.cycle(itertools.product((2, 3, 8, 32, 128), algorithms())):
        if time.monotonic() > end:
            return
        dtype = str(random.choice(DTYPES))
        claim = declarations(name, random, ieee(dtype), count)
        found = evolve(name, claim, count, random, generations=60)
        what = (dtype, found.row.tolist(), claim)
        tally.add((name, f"N={count}"), (found.utilisation, found.mean), 2 * found.tried, what)


def compose(tally: Tally, seconds: float, random: np.random.Generator) -> None:
    """Execute drawn forms of every op in rounded arithmetic; every element of every result is a check."""
    _count(tally, seconds, composed(random))


def control(tally: Tally, seconds: float, random: np.random.Generator) -> None:
    """Run torch's own CPU kernels, judged by the formula and order that they really have."""
    _count(tally, seconds, controls(random))


def _count(tally: Tally, seconds: float, attacked: Iterator[Attacked]) -> None:
    tally.of = "the result"
    end = time.monotonic() + seconds
    for one in attacked:
        tally.add((one.name, one.result), (one.utilisation,), one.checks, one.what)
        if time.monotonic() > end:
            return


def show(tally: Tally) -> None:
    """Print counts, violations, and the largest utilisations."""
    labels = list(dict.fromkeys(label for _, label in tally.worst))
    print(f"{tally.checks} checks, {len(tally.violations)} violations; largest error/bound of {tally.of}")
    for violation in tally.violations[:20]:
        print("VIOLATION", violation)
    print(f"{'':26}" + " ".join(f"{label:>13}" for label in labels))
    for name in sorted({name for name, _ in tally.worst}):
        cells = (tally.worst.get((name, label)) for label in labels)
        texts = ("-" if cell is None else ", ".join(f"{c:.3f}" for c in cell) for cell in cells)
        print(f"{name:26}" + " ".join(f"{text:>13}" for text in texts))


ATTACKS: dict[str, Callable[[Tally, float, np.random.Generator], None]] = {
    attack.__name__: attack for attack in (exhaust, strike, double, search, compose, control)
}


def main() -> int:
    """Run the attacks, each for its share of the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0, help="time for all attacks together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=ATTACKS, help="this attack alone (repeatable)")
    options = parser.parse_args()
    chosen = list(dict.fromkeys(options.only or ATTACKS))
    failed = False
    for name in chosen:
        tally, start = Tally(), time.monotonic()
        ATTACKS[name](tally, options.minutes * 60.0 / len(chosen), np.random.default_rng(options.seed))
        print(f"\n{name}: {ATTACKS[name].__doc__} ({time.monotonic() - start:.0f} s)")
        show(tally)
        failed |= bool(tally.violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
