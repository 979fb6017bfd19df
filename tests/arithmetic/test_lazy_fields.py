"""Lazy fields are computed once, when read, and behave like others afterwards."""

from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from verifier.arithmetic.lazy_fields import Later, LazyField


@dataclass(frozen=True, kw_only=True)
class Pair:
    first: int
    second: LazyField[list[int]] = LazyField()


def test_a_lazy_field_is_computed_once_and_only_when_read():
    calls = []
    pair = Pair(first=3, second=Later(lambda: calls.append(1) or [len(calls)]))
    assert pair.first == 3
    assert calls == []
    assert pair.second == [1]
    assert pair.second is pair.second
    assert calls == [1]


def test_a_record_with_lazy_fields_can_be_replaced_and_compared():
    pair = Pair(first=3, second=Later(lambda: [7]))
    assert replace(pair, first=4) == Pair(first=4, second=[7])
    assert pair == Pair(first=3, second=[7])


def test_a_lazy_field_has_no_default_and_stays_frozen():
    with pytest.raises(TypeError, match="second"):
        Pair(first=3)
    with pytest.raises(FrozenInstanceError):
        Pair(first=3, second=[7]).second = [8]


def test_other_names_stay_unknown():
    with pytest.raises(AttributeError, match="third"):
        Pair(first=3, second=Later(lambda: [7])).third  # noqa: B018
