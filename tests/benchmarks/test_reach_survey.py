"""The survey of reach takes kernels with code of their own, and says of each what did not run."""

import importlib.util
import json
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def survey():
    spec = importlib.util.spec_from_file_location("benchmarks_reach", BENCHMARKS / "reach.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_of_torch_and_skeletons_are_left_out():
    found = survey().compiled_kernels()
    assert {"softmax_cuda", "softmax_triton"} <= {*found}
    assert not [stem for stem in found if "skeleton" in stem or stem.endswith("_torch")]


def test_the_table_sums_up_and_names_what_is_lacking(tmp_path, capsys):
    lacking = [
        {"kind": kind, "file": "k.cu", "function": "f", "line": 7, "why": "why"} for kind in ("loop", "line")
    ]
    counted = {"functions": {"ran": 2, "of": 2}, "loops": {"ran": 1, "of": 2}}
    record = {"subject": "one", "budget": "quick", **counted, "wrapper_lines": None, "lacking": lacking}
    unknown = {**record, "subject": "two", "functions": None, "loops": None, "lacking": []}
    file = tmp_path / "reach.jsonl"
    file.write_text("".join(json.dumps({**r, "processor_seconds": 3.4}) + "\n" for r in (record, unknown)))
    survey().table([file])
    printed = capsys.readouterr().out
    assert "| all | quick | 2/2 | 1/2 | 75.0 % | 0/0 | 7 |" in printed
    assert "| `two` | quick | 0/0 | 0/0 | unknown |" in printed
    assert printed.count("why") == 1
