"""Attack the rules of expression graphs for longer than CI does: random graphs against their normal forms.

    python benchmarks/attack_rules.py --minutes 15 --seed 1000

Each graph is formed at every level of claims, all of its nodes, bounds of signs and ranges are held against
numbers (`tests/support/graphs_held.py`). The exit status is 1 if any is exceeded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="processor time")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    asked = parser.parse_args()
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
    from graphs_held import LEVELS, held, ranged

    seed, compared, bounded, faults, fired = asked.seed, 0, 0, 0, Counter[str]()
    while time.process_time() < 60.0 * asked.minutes:
        said = list(ranged(seed))
        bounded += said.count("")
        found = [f"seed {seed}, ranges: {fault}" for fault in said if fault]
        for claims in LEVELS:
            one = held(seed, claims)
            compared, fired = compared + one.compared, fired + one.fired
            found += [f"seed {seed}, {claims}: {fault}" for fault in one.faults]
        for line in found:
            print(line, flush=True)
        faults += len(found)
        seed += 1
    print(f"{seed - asked.seed} graphs in 16 copies: {compared} numbers, {bounded} ranges, {faults} faults")
    print("least often applied:", ", ".join(f"{name} {n}" for name, n in fired.most_common()[:-6:-1]))
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
