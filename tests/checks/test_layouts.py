"""The check `layouts`: memory that nobody wrote never passes, whatever it held."""

import pytest
import torch
from checks_support import Inline

from strategies.layouts import Layout
from verifier import subject
from verifier.backends import backend
from verifier.checks import Session, layouts
from verifier.ops import op
from verifier.recipes import assemble
from verifier.verdicts import Verdict


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
    setting, run = backend("eager").setting(writes_one_column, "float32"), Inline("eager").run
    session = Session(subject=writes_one_column, case=case, backend="eager", setting=setting, run=run)
    return layouts.check(session)


@pytest.mark.parametrize("layout", [Layout(), Layout(column_step=2), Layout(order="transposed")])
def test_unwritten_elements_fail_where_memory_happens_to_be_right(layout, monkeypatch):
    monkeypatch.setattr(torch, "empty", torch.zeros)  # as if the last call had left the right output there
    assert [o.verdict for o in judged(1, layout)] == [Verdict.PASS]
    (found,) = judged(3, layout)
    assert found.verdict is Verdict.FAIL
    assert found.wrong == 4  # two rows, all but the first of three columns
