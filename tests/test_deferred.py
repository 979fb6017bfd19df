"""Deferred fields are computed once, when read, and behave like others afterwards."""

from dataclasses import dataclass, replace

import pytest

from verifier.deferred import defer, deferrable


@deferrable
@dataclass(frozen=True, kw_only=True)
class Pair:
    first: int
    second: list[int]


def test_a_deferred_field_is_computed_once_and_only_when_read():
    calls = []
    pair = defer(Pair, {"second": lambda: calls.append(1) or [len(calls)]}, first=3)
    assert pair.first == 3
    assert calls == []
    assert pair.second == [1]
    assert pair.second is pair.second
    assert calls == [1]


def test_a_record_with_deferred_fields_can_be_replaced_and_compared():
    pair = defer(Pair, {"second": lambda: [7]}, first=3)
    assert replace(pair, first=4) == Pair(first=4, second=[7])
    assert pair == Pair(first=3, second=[7])


def test_other_names_stay_unknown():
    for pair in (defer(Pair, {"second": lambda: [7]}, first=3), Pair(first=3, second=[7])):
        with pytest.raises(AttributeError, match="third"):
            pair.third  # noqa: B018
