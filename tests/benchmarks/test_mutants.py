"""The table of mutants ends them as `norm-verifier mutate` does, and its columns add up."""

import argparse
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from verifier.audit.mutation.kills import Fate, Kill
from verifier.audit.mutation.mutants import Ending
from verifier.audit.mutation.mutation import Mutation
from verifier.checks.support.truth import Answer
from verifier.ops import op
from verifier.records.reach import SourcePlace
from verifier.subjects.load_file import load_subjects

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
    refusal = Mutation(file=path, line=9, refusal=(9, 10, 10), **{**told, "after": "f"})
    plain = Mutation(file=path, line=20, in_kernel=True, **told)
    same, other = frozenset({"1"}), frozenset({"2"})
    fates = {
        Ending.KILLED: Fate(mutation=replace(plain, after="c"), kills=(Kill(check="memory"),), code=other),
        Ending.SAME_CODE: Fate(mutation=replace(plain, after="d"), code=same),
        Ending.OUTSIDE: Fate(mutation=refusal, code=same, lines=condition),
        Ending.SURVIVED: Fate(mutation=plain, code=other),
        Ending.OPEN: Fate(mutation=replace(plain, after="e"), code=other, errors=("broke",)),
    }
    original = Fate(mutation=None, code=same, lines=condition)
    results = [(None, original), *((one.mutation, one) for one in fates.values())]
    asked = argparse.Namespace(sample=5, seed=0)
    fresh = mutants.Progress(lines=())
    written = [
        json.dumps(
            {"number": n, **mutants._asked(path, m, "quick", asked), **mutants._found((one, ()), fresh)}
        )
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


LINES = (("norm", "forward_error", "float32"), ("norm", "gradient", "float32"))


@pytest.fixture
def run_of(mutants, tmp_path, monkeypatch):
    """Run over three fates: an original, a mutant that `gradient` kills, and one that nothing kills."""
    plain = Mutation(file=tmp_path / "k.py", line=1, start=0, end=1, before="a", after="b", kind="name")
    told = [(tmp_path / "k.py", mutation) for mutation in (None, plain, replace(plain, after="c"))]
    subject = argparse.Namespace(name="norm", op="layer_norm")
    monkeypatch.setattr(mutants, "_in_turn", lambda _: iter(told))
    monkeypatch.setattr(mutants, "load_subjects", lambda _: [subject])
    monkeypatch.setattr(
        mutants, "lines_in_order", lambda *_: [(subject, check, dtype) for _, check, dtype in LINES]
    )

    def run(skipped=(), earlier=(), budgets=("quick",)):
        asked = []

        def pooled(_, tasks, *__, **___):
            for number, (_, mutation, question, line, _) in tasks:
                after = mutation.after if mutation else ""
                asked.append((after, question.cases, *line[1:2]))
                killed = after == "b" and line[1:2] == ("gradient",)
                kills = (Kill(check="gradient", dtype="float32"),) if killed else ()
                if asked[-1] not in skipped:
                    yield number, (Fate(mutation=mutation, kills=kills, seconds=1.0), ())

        monkeypatch.setattr(mutants, "pooled", pooled)
        out = tmp_path / "out.jsonl"
        words = {"sample": 5, "seed": 0, "check": [], "earlier": list(earlier), "kernel": ["k"], "also": []}
        mutants.run(argparse.Namespace(budget=list(budgets), out=out, minutes=1.0, workers=1, **words))
        return asked, out

    return run


def test_a_run_goes_on_where_it_ended(run_of, mutants, capsys):
    asked, out = run_of(skipped={("c", 25, "gradient")})  # begun, and cut off
    assert [one for one in asked if one[0]] == [
        ("b", 25, "forward_error"),
        ("c", 25, "forward_error"),
        ("b", 25, "gradient"),
        ("c", 25, "gradient"),
        ("b", 25),
        ("c", 25),
    ]
    mutants.table([out])
    said = capsys.readouterr().out
    assert "after 1 of 2 lines: k, k.py:1" in said
    cells = [cell.strip() for cell in said.splitlines()[2].split("|")[1:-1]]
    assert cells[:10] == ["k", "quick", "2", "1", "0", "0", "0", "0", "1", "100.0 %"]
    asked, _ = run_of()
    assert asked == [("c", 25, "gradient")]
    mutants.table([out])
    assert "50.0 %" in capsys.readouterr().out
    assert run_of(earlier=[out])[0] == []


def test_a_larger_budget_begins_with_survivors_and_with_what_killed(run_of, mutants, capsys):
    asked, out = run_of(budgets=("quick", "standard"))
    mutated = [one for one in asked if one[0] and len(one) == 3 and one[1] == 200]
    assert mutated == [("c", 200, "forward_error"), ("b", 200, "gradient"), ("c", 200, "gradient")]
    assert asked[-2:] == [("", 200, "forward_error"), ("", 200, "gradient")]  # of the original, last
    mutants.table([out])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| k |")]
    assert ["50.0 %" in row for row in rows] == [True, True]


def test_what_usual_tests_compare_with_is_the_op(mutants):
    usual = sys.modules["usual_tests"]
    subjects = [s for stem in mutants.CORRECTED for s in load_subjects(mutants.KERNELS / f"{stem}.py")]
    by_op = {subject.op: subject for subject in subjects}
    assert len(by_op) > 20
    for subject in by_op.values():
        case = usual.natural(subject, "float32", 3, 8)
        exact = Answer(subject=subject, case=case).exact
        found = usual.reference(case)
        asked = {f"grad_{name}" for name in op(case.op).differentiable if name in case.given}
        assert asked <= set(found) <= set(exact)
        for name, value in found.items():
            rows = torch.from_numpy(op(case.op).canonical(case, name, value.double().numpy()))
            wanted = torch.from_numpy(np.broadcast_to(exact[name].high, rows.shape).copy())
            assert usual.close(rows, wanted, *usual.HABITS["1e-2"]["float32"]), (subject.name, name)


L2 = """
import torch
from verifier import subject

@subject(op="l2_norm", language="torch", dtypes=("float32", "float16"))
def l2_norm(input, eps=1e-6):
    x = input.double()
    return (x / torch.sqrt(x.square().sum(-1, keepdim=True) + eps)).to(input.dtype)
"""


def test_usual_tests_find_a_wrong_kernel_of_an_op_that_torch_lacks(mutants, tmp_path, monkeypatch):
    usual, habits = sys.modules["usual_tests"].usual_tests, ("torch", "1e-2", "Liger")
    monkeypatch.setattr(sys.modules["usual_tests"], "DTYPES", ("float16",))
    for number, (source, found) in enumerate({L2: (), L2.replace("sum", "mean"): habits}.items()):
        path = tmp_path / f"of_length_one_{number}.py"
        path.write_text(source)
        assert usual(str(path), None) == found
