"""Registries: modules that a package finds in its own folder and in folders of extensions.

A file in the folder is all there is to register. Folders of extensions are named by the environment variable
`NORM_VERIFIER_EXTENSIONS`, which child processes inherit; in each of them a file lies as in this repository:
what `verifier/checks/NAME.py` there defines is the module `verifier.checks.NAME`. No file may take the name
of another: nothing that is built in can be replaced.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

VARIABLE = "NORM_VERIFIER_EXTENSIONS"
"""Absolute paths of folders, separated as in PATH."""
EXTENSIBLE = ("strategies", "verifier")
"""Packages that extensions have modules of."""


class ExtensionError(ValueError):
    """A file of an extension that cannot be used, or a folder that is none."""


def registry(package: str, attribute: str) -> dict[str, ModuleType]:
    """Return the modules of a package that define an attribute, by its value or its value's `name`.

    Raises:
        ExtensionError: an extension cannot be used, or two modules have one value.

    """
    found: dict[str, ModuleType] = {}
    for module in modules(package):
        if not hasattr(module, attribute):
            continue
        value = getattr(module, attribute)
        name = value if isinstance(value, str) else value.name
        if name in found:
            raise ExtensionError(f"{module.__file__}: {name!r} is the name of {found[name].__file__}")
        found[name] = module
    return dict(sorted(found.items()))


def modules(package: str) -> list[ModuleType]:
    """Import every module of a package; return them in the order of their names, the package's own first.

    Raises:
        ExtensionError: an extension cannot be used.

    """
    return [imported(f"{package}.{name}") for name, _ in _files(package)]


def imported(name: str) -> ModuleType:
    """Import one module by its full name, be it an extension's.

    Raises:
        ExtensionError: it is an extension's, and cannot be imported.

    """
    package = name.rpartition(".")[0]
    if not package:  # extensions add to packages alone
        return import_module(name)
    home, folders = import_module(package), _extensions(package)
    home.__path__.extend(folder for folder in folders if folder not in home.__path__)
    try:
        return import_module(name)
    except Exception as error:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and str(Path(spec.origin).parent) in folders:
            raise ExtensionError(f"{spec.origin}: {type(error).__name__}: {error}") from error
        raise


@cache
def names_defining(package: str, attribute: str) -> tuple[str, ...]:
    """Return the names of modules whose text defines an attribute at its top level; none is imported."""
    defines = re.compile(rf"^{attribute}\b[^=\n]*=", re.MULTILINE)
    return tuple(
        name
        for name, path in _files(package)
        if path.is_file() and defines.search(path.read_text(encoding="utf-8"))
    )


def _files(package: str) -> Iterator[tuple[str, Path]]:
    """Yield name and file (or folder, of a package) of each module, the package's own first."""
    extensions = _extensions(package)
    taken: dict[str, Path] = {}
    for folder in dict.fromkeys((*_own_folders(package), *extensions)):
        for module in pkgutil.iter_modules([folder]):
            path = Path(folder, module.name if module.ispkg else f"{module.name}.py")
            if module.name in taken:
                raise ExtensionError(f"{path}: {package}.{module.name} is {taken[module.name]}")
            taken[module.name] = path
            yield module.name, path


def _own_folders(package: str) -> list[str]:
    """Return the folders of a package; neither it nor the packages that it lies in are imported."""
    top, *rest = package.split(".")
    spec, name = find_spec(top), top
    for part in rest:
        assert spec is not None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return list(spec.submodule_search_locations)


def extension_roots() -> tuple[str, ...]:
    """Return the folders of extensions whose files are parts of the verifier, not kernels."""
    return _roots(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=16)
def _roots(variable: str) -> tuple[str, ...]:
    return tuple(str(Path(named, package)) for named in _folders(variable) for package in EXTENSIBLE)


def _named() -> list[str]:
    return _folders(os.environ.get(VARIABLE, ""))


def _folders(variable: str) -> list[str]:
    return [folder for folder in variable.split(os.pathsep) if folder]


def _extensions(package: str) -> list[str]:
    """Return the folders of extensions that have files of a package."""
    found = []
    for named in _named():
        if not Path(named).is_absolute() or not Path(named).is_dir():
            raise ExtensionError(f"{VARIABLE}: {named} is no folder named by an absolute path")
        folder = Path(named, *package.split("."))
        if folder.is_dir():
            found.append(str(folder))
    return found
