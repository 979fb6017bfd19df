"""What a copy of the process makes comes back, and an error in it is told from its end."""

import os

import pytest

from verifier.execution import process_copy


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(process_copy, "single_threaded", lambda: True)


def test_an_answer_comes_back_and_leaves_nothing_behind():
    before = os.getpid()
    made = process_copy.in_a_copy(lambda: {"of": os.getpid(), "large": b"x" * 2**20})
    assert made["of"] != before
    assert len(made["large"]) == 2**20
    with pytest.raises(ChildProcessError):
        os.waitpid(made["of"], os.WNOHANG)


def test_a_copy_that_ends_has_no_answer():
    assert process_copy.in_a_copy(lambda: os._exit(3)) is None


@pytest.mark.parametrize("make", [lambda: 1 / 0, lambda: lambda: None], ids=["raises", "cannot be sent"])
def test_an_error_in_a_copy_is_no_end_of_it(make):
    with pytest.raises(process_copy.CopyError, match=r"ZeroDivisionError|[Pp]ickl"):
        process_copy.in_a_copy(make)


def test_beside_other_threads_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(process_copy, "single_threaded", lambda: False)
    assert process_copy.in_a_copy(lambda: 1) is None
