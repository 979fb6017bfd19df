"""Backends: one contract, powers that are declared, and what a place without them answers."""

from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from verifier.checks import checks
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import backend, backends, can
from verifier.machine import session

NAMES = list(backends())


@pytest.mark.parametrize("name", NAMES)
def test_a_declared_power_is_one_that_is_there(name):
    place = backend(name)
    assert place.name == name
    overridden = {m for m in ("varied", "compiled") if getattr(type(place), m) is not getattr(Backend, m)}
    declared = {"varied": Power.VARIES, "compiled": Power.READS_CODE}
    assert overridden == {m for m, power in declared.items() if can(name, power)}


def test_the_device_is_preferred_to_the_machine_and_that_to_the_interpreter():
    assert NAMES == ["cuda", "machine", "interpreter", "eager"]


def test_only_the_machine_carries_shadows_and_watches_memory():
    for power in (Power.SHADOWS, Power.WATCHES, Power.VARIES, Power.REPEATS):
        assert [name for name in NAMES if can(name, power)] == ["machine"]
    assert [name for name in NAMES if can(name, Power.READS_CODE)] == ["cuda", "machine"]
    assert [name for name in NAMES if not can(name, Power.FAR_ROWS)] == ["interpreter"]
    assert [name for name in NAMES if can(name, Power.FOLLOWS_TORCH)] == ["eager"]


def test_no_check_and_no_audit_asks_for_a_backend_by_its_name():
    """A backend of another name with the same powers is asked for the same."""
    audit = Path(import_module("verifier.audit").__file__).parent.rglob("*.py")
    for file in (*audit, *(Path(module.__file__) for module in checks().values())):
        source = file.read_text(encoding="utf-8")
        for name in NAMES:
            assert f'== "{name}"' not in source, file
            assert f'!= "{name}"' not in source, file


def test_options_that_a_backend_does_not_have_are_refused():
    with pytest.raises(TypeError, match="the backend eager has no options: poison"):
        backend("eager").prepare(poison=3)


def test_an_unknown_backend_is_named_with_those_there_are():
    with pytest.raises(ValueError, match="no backend 'tpu'; there are: cuda, machine, interpreter, eager"):
        backend("tpu")


def test_the_verifiers_own_operations_pass_the_machine_unseen_unless_others_look():
    place, seen = backend("machine"), []

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with session():
        with place.unfollowed():
            assert not _get_current_dispatch_mode_stack()
            made = torch.full((2,), 1.0, device=place.device())
        assert len(_get_current_dispatch_mode_stack()) == 1
        assert str(made.device) == place.device()
        with Looks(), place.unfollowed():
            made.clone()
    assert seen == ["clone"]
    with backend("eager").unfollowed(), Looks():
        made.clone()
    assert seen == ["clone"] * 2
