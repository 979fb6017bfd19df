"""Of a masked softmax a declaration says what a fully masked row gives; of another op it does not."""

import pytest

from verifier import subject
from verifier.ops import ops
from verifier.subjects.declare import _ops_of_masks


def declared(op, **claim):
    return subject(op=op, language="torch", dtypes=("float32",), variance="softmax", **claim)(kernel)


def kernel(input, mask=None):
    """Never called."""


def test_the_ops_of_masks_are_those_that_compare_scores():
    assert set(_ops_of_masks()) == {name for name, op in ops().items() if op.compared is not None}


@pytest.mark.parametrize("claimed", [None, "zero"])
def test_a_masked_op_without_a_meaning_of_no_element_is_refused(claimed):
    with pytest.raises(ValueError, match="'zeros' or 'nan'"):
        declared("masked_softmax", fully_masked=claimed)


def test_another_op_has_no_mask():
    with pytest.raises(ValueError, match="softmax has no mask"):
        declared("softmax", fully_masked="nan")


@pytest.mark.parametrize("claimed", ["zeros", "nan"])
def test_what_is_declared_is_claimed_and_told(claimed):
    made = declared("causal_log_softmax", fully_masked=claimed)
    assert made.claim.fully_masked == claimed
