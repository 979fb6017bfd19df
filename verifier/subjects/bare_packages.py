"""What a library is imported with: packages without their `__init__`, variables of the environment."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

from verifier.records.library import Library

VARIABLES: set[str] = set()
"""Names in the environment that stay set since a library that is loaded declares them."""


def prepare(library: Library) -> None:
    """Let a library be imported as its declaration says; nothing is imported yet."""
    for assignment in library.environment:
        name, _, value = assignment.partition("=")
        os.environ.setdefault(name, value)
        VARIABLES.add(name)
    for package in library.without_init:
        leave_out_init(package)
        homes = (one.rpartition(".") for one in library.handed_on)
        made = {name: home for home, _, name in homes if home.rpartition(".")[0] == package}
        if made and package in sys.modules:
            _hand_on(sys.modules[package], made)


def leave_out_init(package: str) -> None:
    """Let modules of a package be imported without its `__init__`; nothing where it is loaded, or not there.

    package: its full name. Packages around it come first, if theirs is left out as well.
    """
    if package in sys.modules:
        return
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # of a package around it
        return
    if spec is None or spec.submodule_search_locations is None:
        return
    module = module_from_spec(spec)
    sys.modules[package] = module
    around, _, name = package.rpartition(".")
    if around:
        setattr(sys.modules[around], name, module)


def _hand_on(package: ModuleType, made: dict[str, str]) -> None:
    """Let a package give names that modules of its own make, where it has none itself."""

    def find(name: str) -> object:
        if name not in made:
            raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
        return getattr(import_module(made[name]), name)

    vars(package).setdefault("__getattr__", find)
