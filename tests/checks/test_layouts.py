"""The check `layouts`: unwritten memory never passes, and what torch rounds elsewhere is no finding."""

import pytest
import torch
from checks_support import KERNELS, examination, failures, passes, subject_of
from in_process import InProcess

from strategies.layouts import Layout
from strategies.values import Values
from verifier import subject
from verifier.cases.recipe import Recipe, assemble, build
from verifier.checks import layouts
from verifier.checks.support.session import Session
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.verdict import Verdict


@subject(
    op="layer_norm", language="torch", variance="two_pass", dtypes=("float32",), differentiable=False
)  # fmt: skip
def writes_one_column(input, eps=1e-5):
    """Right for rows of one number, which are zero everywhere; other columns keep what memory held."""
    output = torch.empty(input.shape)
    output[..., 0] = 0.0
    return output


def judged(columns, layout):
    tensors = {"input": torch.zeros(2, columns), "weight": None, "bias": None}
    scalars = {"normalized_shape": (columns,), "eps": 1e-5}
    case = assemble(
        op("layer_norm"), "float32", tensors, scalars, {"input": layout}, hazard="ordinary", origin=""
    )
    setting, run = backend("eager").setting(writes_one_column, "float32"), InProcess("eager").run
    session = Session(subject=writes_one_column, case=case, backend="eager", setting=setting, run=run)
    return layouts.check(session)


@pytest.mark.parametrize("layout", [Layout(), Layout(column_step=2), Layout(order="transposed")])
def test_unwritten_elements_fail_where_memory_happens_to_be_right(layout, monkeypatch):
    monkeypatch.setattr(torch, "empty", torch.zeros)  # as if the last call had left the right output there
    assert [o.verdict for o in judged(1, layout)] == [Verdict.PASS]
    (found,) = judged(3, layout)
    assert found.verdict is Verdict.FAIL
    assert found.wrong == 4  # two rows, all but the first of three columns


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("variant", [3, 4])
def test_torchs_evaluation_of_halves_is_inside_its_bound_where_they_are_not_contiguous(variant, dtype):
    batch_norm, far = subject_of(KERNELS / "batch_norm_torch.py"), Layout(row_padding=5)
    outcomes = []
    for seed in (33024, 0, 1, 2):
        recipe = Recipe(
            rows=3, columns=128, variant=variant, input=Values(seed=seed), weight=None, bias=None,
            grad_output=Values(distinct=2), layouts=(("input", far),),
        )  # fmt: skip
        case = build(op("batch_norm"), batch_norm, dtype, recipe, gradients=True)
        outcomes += examination(batch_norm, "layouts", dtype).judge(case)[0]
    assert failures(outcomes) == []
    assert {"output", "grad_input"} <= {o.output for o in passes(outcomes)}
