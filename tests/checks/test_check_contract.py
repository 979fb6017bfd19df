"""Every check is a module that has what the contract names; what it leaves out has one default."""

import inspect
import types
from typing import get_type_hints

import pytest

from verifier.checks import checks
from verifier.checks.support import check as contract
from verifier.checks.support.check import OPTIONAL, Check, completed

FUNCTIONS = [name for name, value in vars(Check).items() if inspect.isfunction(value) and name[0] != "_"]
WORDS = [name for name in get_type_hints(Check) if name.isupper()]


def lacking(module):
    """Return what a module lacks of the contract, or has in another form."""
    missing = [name for name in (*FUNCTIONS, *WORDS) if not hasattr(module, name)]
    hints = get_type_hints(Check)
    of_other_kind = [n for n in WORDS if n not in missing and not _is(getattr(module, n), hints[n])]
    return missing + of_other_kind + [n for n in FUNCTIONS if n not in missing and not _takes(module, n)]


def _is(value, kind):
    return isinstance(value, tuple if kind == tuple[str, ...] else kind)


def _takes(module, name):
    wanted = list(inspect.signature(getattr(Check, name)).parameters)[1:]
    return len(inspect.signature(getattr(module, name)).parameters) == len(wanted)


@pytest.mark.parametrize("name", list(checks()))
def test_a_check_has_all_that_the_contract_names(name):
    assert lacking(checks()[name]) == []


def test_every_name_of_the_contract_is_looked_at():
    assert FUNCTIONS == ["plan", "skips", "check", "must_be_tried", "dry_ways"]
    assert {"NAME", "DEMANDS", "WHY", "CATCHES", "ORDER"} < set(WORDS)
    assert set(OPTIONAL) < {*FUNCTIONS, *WORDS}


def a_check(**changes):
    module = types.ModuleType("a_check")
    given = {
        "NAME": "a_check",
        "DEMANDS": "",
        "WHY": "",
        "CATCHES": (),
        "plan": lambda subject, op: None,
        "check": lambda session: [],
    }
    vars(module).update({**given, **changes})
    return completed(module)


def test_what_is_optional_has_its_default_and_what_is_said_stays():
    assert lacking(a_check()) == []
    assert a_check().must_be_tried(None) == []
    assert a_check().dry_ways(None, None) == {}
    assert a_check().skips(None, None, "float32", "eager") is None
    assert (contract.OPTIONAL["ORDER"], 7) == (a_check().ORDER, a_check(ORDER=7).ORDER)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"DEMANDS": 3}, "DEMANDS"), ({"CATCHES": "a"}, "CATCHES"), ({"check": lambda: None}, "check")],
)
def test_another_form_than_the_contracts_is_seen(changes, name):
    assert lacking(a_check(**changes)) == [name]
