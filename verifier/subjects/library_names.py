"""Which names of a package a library's file takes, which of them it lacks, and which norms nobody takes.

All of it is read off the sources: the package is found, and not imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path

_NORM = re.compile(r"norm|softmax", re.IGNORECASE)
"""What a name holds that may be a norm's."""


@dataclass(frozen=True, order=True)
class Named:
    """A name that a module binds at its top level."""

    module: str
    name: str

    def __str__(self) -> str:
        """Return the name with its module."""
        return f"{self.module}.{self.name}"


@dataclass(kw_only=True)
class ModuleNames:
    """What one module binds at its top level.

    defined: functions and classes, each with the names in its body. taken: names from other modules.
    aliases: names that are bound to an expression, each with the names in it. every: whether `import *`
    brings in names that cannot be read off.
    """

    defined: dict[str, frozenset[str]] = field(default_factory=dict)
    taken: dict[str, Named] = field(default_factory=dict)
    aliases: dict[str, frozenset[str]] = field(default_factory=dict)
    every: bool = False


class Sources:
    """The modules of an installed package, read when they are asked for."""

    def __init__(self, package: str, folder: Path) -> None:
        self.package, self.folder = package, folder
        self._read: dict[str, ModuleNames | None] = {}

    def module(self, name: str) -> ModuleNames | None:
        """Return a module of the package, None where there is none of that name."""
        if name not in self._read:
            self._read[name] = _module(self._file(name), name)
        return self._read[name]

    def _file(self, name: str) -> Path:
        inside = self.folder.joinpath(*name.split(".")[1:])
        return inside / "__init__.py" if inside.is_dir() else inside.with_suffix(".py")

    def has(self, wanted: Named) -> bool:
        """Return whether a module binds a name, as far as can be read off; one of another package does."""
        if wanted.module.split(".")[0] != self.package:
            return True
        module = self.module(wanted.module)
        if module is None:
            return False
        bound = wanted.name in {*module.defined, *module.taken, *module.aliases}
        return bound or module.every or self.module(str(wanted)) is not None

    def home(self, named: Named) -> Named:
        """Return where a name is defined that modules hand on to each other."""
        for _ in range(10):
            module = self.module(named.module)
            if module is None or named.name not in module.taken:
                return named
            named = module.taken[named.name]
        return named

    def used_by(self, named: Named) -> Iterator[Named]:
        """Yield the names of the package that a definition uses, each where it is defined."""
        module = self.module(named.module)
        if module is None:
            return
        for name in module.defined.get(named.name, module.aliases.get(named.name, frozenset())):
            if name in module.defined or name in module.aliases:
                yield Named(named.module, name)
            elif name in module.taken and module.taken[name].module.split(".")[0] == self.package:
                yield self.home(module.taken[name])

    @cached_property
    def norms(self) -> list[Named]:
        """The public functions and classes whose name, or whose module's, is that of a norm or softmax."""
        found: list[Named] = []
        for file in sorted(self.folder.rglob("*.py")):
            parts = file.relative_to(self.folder).with_suffix("").parts
            name = ".".join([self.package, *(parts[:-1] if parts[-1] == "__init__" else parts)])
            module = self.module(name) if _NORM.search(f"{name} {_text(file)}") else None
            if module is None:
                continue
            of_norms = _NORM.search(name.rpartition(".")[2]) is not None
            found += [
                Named(name, one)
                for one in module.defined
                if not one.startswith("_") and (of_norms or _NORM.search(one))
            ]
        return found

    def reached_from(self, names: Iterable[Named]) -> set[Named]:
        """Return these names and all that they come to use."""
        reached = {self.home(one) for one in names}
        waiting = list(reached)
        while waiting:
            new = set(self.used_by(waiting.pop())) - reached
            reached |= new
            waiting += new
        return reached

    def unreached(self, taken: Iterable[Named]) -> list[Named]:
        """Return the norms that do not run where these names do.

        What a name uses runs with it. What uses a name and no norm besides is taken for a wrapper of it, and
        so is a wrapper of that. Of the others, parts that one of them uses are left out.
        """
        wrappers = {self.home(one) for one in taken}
        known = self.reached_from(wrappers)
        left = [one for one in self.norms if one not in known]
        while True:
            more = [one for one in left if self._wraps(one, wrappers, set(left) - {one})]
            if not more:
                break
            wrappers.update(more)
            left = [one for one in left if one not in wrappers]
        uses = {one: self.reached_from([one]) - {one} for one in left}
        return [
            one
            for place, one in enumerate(left)
            if not any(
                one in uses[other] and (other not in uses[one] or place > left.index(other)) for other in left
            )
        ]

    def _wraps(self, one: Named, wrappers: Container[Named], others: set[Named]) -> bool:
        used = set(self.used_by(one))
        return any(name in wrappers for name in used) and not used & others


@lru_cache(maxsize=16)
def sources_of(package: str) -> Sources | None:
    """Return the sources of a package that is installed; None where its folder cannot be found."""
    spec = find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return Sources(package, Path(folders[0])) if folders else None


@lru_cache(maxsize=16)
def taken_by_functions(file: Path, package: str) -> Mapping[str, tuple[Named, ...]]:
    """Return the names of a package that each function of a file imports, itself or in one that it calls."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    own: dict[str, list[Named]] = {}
    calls: dict[str, set[str]] = {}
    for name, function in functions.items():
        inside = [inner for statement in function.body for inner in ast.walk(statement)]
        own[name] = [
            Named(one.module or "", alias.name)
            for one in inside
            if isinstance(one, ast.ImportFrom) and (one.module or "").split(".")[0] == package
            for alias in one.names
        ]
        calls[name] = {one.id for one in inside if isinstance(one, ast.Name) and one.id in functions}
    found = {}
    for name in functions:
        met, waiting = {name}, [name]
        while waiting:
            new = calls[waiting.pop()] - met
            met |= new
            waiting += new
        found[name] = tuple(dict.fromkeys(one for each in sorted(met) for one in own[each]))
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _module(file: Path, name: str) -> ModuleNames | None:
    if not file.is_file():
        return None
    try:
        tree = ast.parse(_text(file))
    except (ValueError, SyntaxError):
        return None
    made = ModuleNames()
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for statement in _statements(tree.body):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            made.defined[statement.name] = _names(statement)
        elif isinstance(statement, ast.ImportFrom):
            home = _absolute(statement, package)
            for alias in statement.names:
                made.every = made.every or alias.name == "*"
                made.taken[alias.asname or alias.name] = Named(home, alias.name)
        elif isinstance(statement, ast.Assign):
            for target in (one for one in statement.targets if isinstance(one, ast.Name)):
                made.aliases[target.id] = _names(statement.value)
    return made


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under `if`, `try` and `with` as well."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            inner = [*statement.body, *getattr(statement, "orelse", ())]
            for handler in getattr(statement, "handlers", ()):
                inner += handler.body
            yield from _statements(inner)


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    if not statement.level:
        return statement.module or ""
    parts = package.split(".")[: len(package.split(".")) - statement.level + 1]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _names(node: ast.AST) -> frozenset[str]:
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
