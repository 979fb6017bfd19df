"""What a function may come to: of a module what is asked of it, unless the module is used otherwise."""

import pytest

from verifier import load
from verifier.subjects.used_functions import used_by

LIBRARY = """
def sums(x):
    return x

def tile(x):
    return x
"""
USER = """
from pathlib import Path

from verifier import load

library = load(Path(__file__).with_name("library.py")).module
designs = {}

def uses(x):
    %s
"""


@pytest.fixture
def used(tmp_path):
    def of(statements):
        (tmp_path / "library.py").write_text(LIBRARY)
        user = tmp_path / "user.py"
        user.write_text(USER % statements.replace("\n", "\n    "))
        return {f.name for f in used_by(load(user).module.uses).functions}

    return of


def test_a_name_that_is_asked_of_something_else_is_none_of_the_module(used):
    assert used("return library.tile(x), x.sums()") == {"uses", "tile"}


@pytest.mark.parametrize(
    "statements",
    [
        "return library.tile(x), library.sums(x)",
        "alias = library\nreturn alias.sums(x) + alias.tile(x)",
        "designs['one'] = library\nreturn library.tile(x) + designs['one'].sums(x)",
        "def inner():\n    return library.sums(x)\nreturn inner() + library.tile(x)",
        "def inner(module=library):\n    return module.sums(x)\nreturn inner() + library.tile(x)",
    ],
)
def test_a_module_that_is_used_otherwise_may_give_all_that_is_named(used, statements):
    assert {"sums", "tile"} <= used(statements)
