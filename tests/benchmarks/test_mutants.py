"""The table of mutants ends them as `norm-verifier mutate` does, and its columns add up."""

import argparse
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from verifier.audit.mutation.kills import Fate, Kill
from verifier.audit.mutation.mutants import Ending
from verifier.audit.mutation.mutation import Mutation
from verifier.records.reach import SourcePlace

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("benchmarks_mutants", BENCHMARKS / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_each_ending_is_read_back_and_counted_once(mutants, tmp_path, capsys):
    path, told = tmp_path / "k.py", {"start": 0, "end": 1, "before": "a", "after": "b", "kind": "name"}
    condition = frozenset({SourcePlace("k.py", "norm", 9)})
    refusal = Mutation(file=path, line=9, refusal=(9, 10, 10), **told)
    plain = Mutation(file=path, line=20, in_kernel=True, **told)
    same, other = frozenset({"1"}), frozenset({"2"})
    fates = {
        Ending.KILLED: Fate(mutation=plain, kills=(Kill(check="memory"),), code=other),
        Ending.SAME_CODE: Fate(mutation=plain, code=same),
        Ending.OUTSIDE: Fate(mutation=refusal, code=same, lines=condition),
        Ending.SURVIVED: Fate(mutation=plain, code=other),
        Ending.OPEN: Fate(mutation=plain, code=other, errors=("broke",)),
    }
    original = Fate(mutation=None, code=same, lines=condition)
    results = [(None, original), *((one.mutation, one) for one in fates.values())]
    asked = argparse.Namespace(budget="quick", sample=5, seed=0)
    written = [
        json.dumps({"number": n, **mutants._asked(path, m, asked), **mutants._found((one, ()))})
        for n, (m, one) in enumerate(results)
    ]
    records = [json.loads(text) for text in written]
    originals = {("k", "quick"): records[0]}
    assert [mutants.ending(record, originals) for record in records[1:]] == list(fates)
    kept = tmp_path / "k.jsonl"
    kept.write_text("\n".join(written))
    mutants.table([kept])
    lines = capsys.readouterr().out.splitlines()
    head, row = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[0], lines[2]))
    cells = dict(zip(head, row, strict=True))
    assert int(cells["mutants"]) == sum(int(cells[ending]) for ending in Ending) == 5
    assert cells["audit"] == "50.0 %"


def test_a_run_goes_on_where_it_ended(mutants, tmp_path, monkeypatch, capsys):
    plain = Mutation(file=tmp_path / "k.py", line=1, start=0, end=1, before="a", after="b", kind="name")
    told = [(tmp_path / "k.py", mutation) for mutation in (None, plain, replace(plain, after="c"))]
    monkeypatch.setattr(mutants, "_in_turn", lambda *_: iter(told))
    asked = []

    def pooled(_, tasks, *__, **___):
        for number, (_, mutation, _) in tasks:
            asked.append(mutation)
            if number != skipped:
                yield number, (Fate(mutation=mutation), ())

    monkeypatch.setattr(mutants, "pooled", pooled)
    out = tmp_path / "out.jsonl"
    arguments = argparse.Namespace(
        budget="quick", sample=5, seed=0, out=out, kernel=["k"], minutes=1.0, workers=1
    )
    skipped = 1  # begun, and cut off
    mutants.run(arguments)
    mutants.table([out])
    assert "1 begun and not ended, run again to end them: [1]" in capsys.readouterr().out
    skipped, asked[:] = None, []
    mutants.run(arguments)
    assert asked == [plain]
    assert [record["number"] for record in mutants._records([out])] == [0, 2, 1]
    mutants.table([out])
    assert "not ended" not in capsys.readouterr().out
