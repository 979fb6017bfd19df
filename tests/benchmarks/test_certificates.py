"""The grid of certificates is made once, continued where it was cut off, and survives what breaks."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from verifier.audit.worker_pool import Died

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def certificates(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("benchmarks_certificates", BENCHMARKS / "certificates.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(certificates, monkeypatch, tmp_path):
    """Make the results of one kernel as `answer` says, and return the arguments of the cells."""

    def made(answer):
        asked = []

        def pooled(function, tasks, workers, *, backends):
            assert (function, workers, list(backends)) == (certificates.cell, 2, ["machine"])
            for number, arguments in tasks:
                asked.append(arguments[1:-1])
                yield number, answer(*arguments[1:-1])

        monkeypatch.setattr(certificates, "pooled", pooled)
        asked_for = ["--part", "rms_norm_triton", "--columns", "33,1000", "--workers", "2", "--found"]
        monkeypatch.setattr(sys, "argv", ["certificates.py", *asked_for, str(tmp_path / "found.jsonl")])
        return certificates.main(), asked

    return made


def told(**more):
    return {"seconds": 1.0, "refused": "", "claims": "EZ", "torch": "2", "triton": "3", **more}


def test_the_grid_is_made_wide_rows_first_and_only_once(certificates, run, tmp_path, capsys):
    status, asked = run(lambda *_: told())
    assert status == 0
    kernels = {file.stem for file in certificates.corrected() if "rms_norm_triton" in file.stem}
    assert {"rms_norm_triton", "add_rms_norm_triton", "silu_gate_rms_norm_triton"} <= kernels
    every = {(k, d, c, g) for k in kernels for d in certificates.DTYPES
             for c in (33, 1000) for g in (False, True)}  # fmt: skip
    assert set(asked) == every
    assert [columns for _, _, columns, _ in asked] == sorted((c for _, _, c, _ in asked), reverse=True)
    found = tmp_path / "found.jsonl"
    lines = found.read_text().splitlines()
    assert len(lines) == len(every)
    found.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:30])  # cut off in its last line
    assert run(lambda *_: told()) == (0, [asked[-1]])
    assert run(lambda *_: told()) == (0, [])
    changed = {**json.loads(lines[0]), "source": "another"}
    with found.open("a") as file:
        file.write(json.dumps(changed) + "\n")
    assert run(lambda *_: told()) == (0, [asked[0]])  # the file of the kernel was another
    page = "\n".join(certificates.table(certificates.read(found)))
    assert f"{len(every)} of {len(every)} certified." in page
    assert "torch 2, Triton 3" in page
    assert "| 33 | 1.0, 1.0 | 1.0, 1.0 |" in page


def test_what_breaks_is_one_cell_that_is_asked_for_again(certificates, run, tmp_path):
    def dies(kernel, dtype, columns, gradients):
        if (kernel, dtype, columns) == ("rms_norm_triton", "float16", 1000):
            return (
                Died(message="the process was killed by SIGKILL") if gradients else told(refused="why: not")
            )
        return told()

    assert run(dies)[0] == 1
    known = certificates.read(tmp_path / "found.jsonl")
    assert known[certificates.Key("rms_norm_triton", "float16", 1000, True)]["refused"] == (
        "error: the process was killed by SIGKILL"
    )
    assert run(lambda *_: told()) == (0, [("rms_norm_triton", "float16", 1000, True)])


def test_a_cell_tells_a_refusal_from_what_broke_and_from_what_took_too_long(certificates, monkeypatch):
    import certificate_cells

    from verifier.records.certificate import Refusal

    path = str(BENCHMARKS.parent / "kernels" / "rms_norm_triton.py")

    def cell(found, limit=60.0):
        monkeypatch.setattr(certificate_cells, "certified", found)
        return certificate_cells.cell(path, "rms_norm_triton", "float32", 33, False, limit)["refused"]

    assert cell(lambda *_, **__: Refusal(stage="a", why="b")) == "a: b"
    assert cell(lambda *_, **__: 1 / 0) == "error: ZeroDivisionError: division by zero"

    def slow(*_, **__):
        while True:
            pass

    assert cell(slow, 0.05) == "error: not known within 0.05 seconds"


def test_a_cell_is_of_the_skeletons_of_its_kernel_too(certificates, tmp_path):
    for name, text in (
        ("a.py", "load(x.py)"),
        ("x.py", "#include y.cuh"),
        ("y.cuh", ""),
        ("other.py", "a.py"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [file.name for file in certificates.sources(tmp_path / "a.py")] == ["a.py", "x.py", "y.cuh"]
