"""A tensor of a finding is shown by its first values, or by the few that differ from all others."""

import pytest
import torch

from verifier.audit.report.finding_text import tensor_text
from verifier.records.case import Case


def shown(values, shape=None):
    tensor = torch.tensor(values, dtype=torch.float32)
    tensor = tensor if shape is None else tensor.reshape(shape)
    told = {"op": "layer_norm", "dtype": "float32", "hazard": "normal", "rows": 1, "columns": 1}
    case = Case(**told, tensors={"input": tensor}, scalars={}, layouts={})
    return tensor_text(case, "input").partition("offset 0: ")[2]


@pytest.mark.parametrize(
    ("values", "shape", "told"),
    [
        ([1.0, 2.0, 0.5], None, "[1, 2, 0.5]"),
        ([0.0] * 5 + [7.0] + [0.0] * 4, (2, 5), "all 0 but 7 at [1, 0]"),
        (
            [0.0] * 9 + [-0.0, float("nan"), 8.0],
            (3, 4),
            "all 0 but -0 at [2, 1], nan at [2, 2], 8 at [2, 3]",
        ),
        ([1.5] * 7, None, "all 1.5"),
        ([0.0] * 4 + [1.0, 2.0, 3.0, 4.0, 5.0], None, "[0, 0, 0, 0, 1, 2, ...]"),
        ([], (0, 4), "[]"),
    ],
)
def test_what_differs_from_all_others_is_shown_where_it_is(values, shape, told):
    assert shown(values, shape) == told
