"""The page of what graphs cost marks what costs more than it may, and what is refused."""

import importlib.util
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHEAP = {
    "plain": 0.01, "recorded": 0.049, "certificate": 1.9, "slowness": 2.34, "refused": "", "memory": 2**30,
    "base": 2**28,
}  # fmt: skip


def lines(**changes):
    spec = importlib.util.spec_from_file_location("benchmarks_graphs", BENCHMARKS / "graphs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = list(module.page([{"kernel": "k", "dtype": "float16", "gradients": {**CHEAP, **changes}}]))
    return page[-1]


def test_what_is_within_its_cost_is_not_marked():
    assert lines() == "| k | float16 | with gradients | 10.0 | 49.0 | 4.9 | 1.90 | 2.3 | 1024 (256) |"


def test_each_cost_beyond_what_it_may_be_is_marked():
    assert "| **5.1** |" in lines(recorded=0.051)
    assert "| **2.10** |" in lines(certificate=2.1)
    assert "| **2049 (" not in lines(memory=2049 * 2**20)
    assert "| **2049** (256) |" in lines(memory=2049 * 2**20)


def test_a_refusal_is_told_beside_its_seconds():
    assert "| 1.90, refused: races |" in lines(refused="races")
