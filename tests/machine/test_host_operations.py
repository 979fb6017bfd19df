"""What torch joins, fills up and cuts between two launches keeps its shadows, place by place."""

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from verifier.machine.shadow.arithmetics import field, make
from verifier.machine.shadow.host_operations import HostSlots
from verifier.machine.shadow.slots import Slots
from verifier.machine.shadow.taint_slots import TaintSlots

PLACED = {
    "columns behind": lambda x: pad(x, (0, 3)),
    "columns on both sides": lambda x: pad(x, (2, 1), value=0.5),
    "rows and columns": lambda x: pad(x, (1, 0, 0, 2), value=-4.0),
    "columns cut off": lambda x: pad(x, (-2, 3)),
    "rows cut off behind, columns before": lambda x: pad(x, (-1, -1, 1, -3)),
    "nothing left": lambda x: pad(x, (-4, -3)),
    "three dimensions": lambda x: pad(x.reshape(2, 3, 7), (0, 1, 1, 0)),
    "joined rows": lambda x: torch.cat([x, 2 * x]),
    "joined columns": lambda x: torch.cat((x[:, 4:], x[:, :4]), dim=-1),
    "joined with numbers": lambda x: torch.cat([x, torch.ones(2, 7, dtype=x.dtype)], 0),
    "stacked": lambda x: torch.stack([x, 4 * x]),
    "stacked elements": lambda x: torch.stack((x, x.neg()), dim=-1),
    "joined with nothing": lambda x: torch.cat([torch.empty(0, dtype=x.dtype), x], 0),
}
"""By name a function of (6, 7)."""


@pytest.mark.parametrize("name", list(PLACED))
def test_shadows_lie_where_numbers_do(name):
    x = torch.arange(1.0, 43.0, dtype=torch.float64).reshape(6, 7) / 8
    slots = Slots(make("field"))
    slots.set(x, field.of_floats(x.numpy()))
    with HostSlots(slots):
        result = PLACED[name](x)
        found = slots.get(result)
    assert not slots.counters.uncovered
    assert result.numel() == 0 or slots.has(result)
    assert np.array_equal(found, field.of_floats(result.numpy()))


def test_what_is_joined_depends_on_its_part_alone():
    slots, x = TaintSlots(make("taint")), torch.ones(2, 3)
    slots.set(x, np.broadcast_to(np.array([[1], [2]], dtype=np.uint64), (2, 3)))
    with HostSlots(slots):
        found = slots.get(torch.cat([pad(x[:1], (0, 2)), pad(x[1:], (2, 0))]))
    assert found.tolist() == [[1, 1, 1, 0, 0], [0, 0, 2, 2, 2]]
