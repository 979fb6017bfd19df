"""A kernel is recorded in each mode of fusing products that is another program, and in no mode twice."""

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="recorded are Triton's kernels; Triton is missing")

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support import recorded_code
from verifier.execution.backends import backend
from verifier.machine import session
from verifier.ops import op
from verifier.subjects.load_file import load

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("folder", "name", "runs"),
    [("kernels", "rms_norm_triton", 1), ("tests/faulty_kernels", "sums_by_atomics_triton", 2)],
)
def test_a_kernel_of_which_no_product_may_be_fused_is_recorded_once(folder, name, runs, monkeypatch):
    subject = load(ROOT / folder / f"{name}.py").subjects[0]
    recipe = Recipe(rows=2, columns=33, input=Values(seed=0))
    case = build(op(subject.op), subject, "float32", recipe, gradients=False)
    recorded = []

    def counting(*arguments, **options):
        recorded.append(found := original(*arguments, **options))
        return found

    original = recorded_code.recorded_graph
    monkeypatch.setattr(recorded_code, "recorded_graph", counting)
    with session():
        seen = recorded_code.recordings(subject, case, backend=backend("machine"), gradients=False)
    assert len(recorded) == runs
    digests = [seen.found.by_mode[mode].digest for mode in recorded_code.MODES]
    assert len({*digests}) == runs
