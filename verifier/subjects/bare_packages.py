"""Packages whose modules are imported while their `__init__` is not executed."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec


def leave_out_init(package: str) -> None:
    """Let modules of a package be imported without its `__init__`; nothing where it is loaded, or not there.

    package: its full name. Packages around it come first, if theirs is left out as well.
    """
    if package in sys.modules:
        return
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return
    module = module_from_spec(spec)
    sys.modules[package] = module
    around, _, name = package.rpartition(".")
    if around:
        setattr(sys.modules[around], name, module)
