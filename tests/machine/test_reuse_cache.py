"""Prepared waves that wait for another launch: by how many bytes, how many, and in which order they go."""

from verifier.machine.execute import reuse_cache
from verifier.machine.execute.reuse_cache import ReuseCache


def kept(cache):
    return [key for key in "abcdef" if cache.take(key) is not None]


def test_what_has_waited_longest_goes_when_there_are_too_many_bytes(monkeypatch):
    monkeypatch.setattr(reuse_cache, "MOST_BYTES", 100)
    cache = ReuseCache()
    for key, octets in {"a": 40, "b": 50, "c": 10, "d": 20}.items():
        cache.give_back(key, key.upper(), octets)
    assert kept(cache) == ["b", "c", "d"]
    assert cache.octets == 0  # what was taken counts no more


def test_what_is_too_large_waits_alone(monkeypatch):
    monkeypatch.setattr(reuse_cache, "MOST_BYTES", 100)
    cache = ReuseCache()
    cache.give_back("a", "A", 30)
    cache.give_back("b", "B", 500)
    assert kept(cache) == ["b"]


def test_what_comes_back_under_the_same_key_takes_the_place_of_the_former(monkeypatch):
    monkeypatch.setattr(reuse_cache, "MOST_BYTES", 100)
    cache = ReuseCache()
    for _ in range(3):
        cache.give_back("a", "A", 60)
    assert cache.octets == 60
    assert kept(cache) == ["a"]


def test_no_more_wait_than_so_many(monkeypatch):
    monkeypatch.setattr(reuse_cache, "MOST_KEPT", 2)
    cache = ReuseCache()
    for key in "abc":
        cache.give_back(key, key.upper(), 1)
    assert kept(cache) == ["b", "c"]


def test_a_cache_that_shrinks_gives_up_what_has_waited_longest():
    cache = ReuseCache()
    for key, octets in {"a": 40, "b": 50, "c": 10}.items():
        cache.give_back(key, key.upper(), octets)
    cache.shrink(60)
    assert kept(cache) == ["b", "c"]
    cache.give_back("d", "D", 500)
    cache.shrink(60)
    assert kept(cache) == []
