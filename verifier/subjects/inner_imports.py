"""Which modules a function imports inside itself, and where its source takes objects by computed names."""

from __future__ import annotations

import ast
import contextlib
import dis
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import torch

from verifier.machine.culprit import is_of_subjects
from verifier.machine.in_force import current
from verifier.subjects.function_nodes import node_of
from verifier.subjects.process_settings import settings_kept

_OF_TORCH = frozenset({"aten", "prim", "prims", "c10"})
"""Namespaces of `torch.ops` that hold no kernel of a subject."""
_IMPORT = dis.opmap["IMPORT_NAME"]
_IMPORTING = frozenset({"import_module", "__import__"})
_OF_ITSELF = frozenset(
    {"__version__", "__file__", "__path__", "__name__", "__spec__", "__doc__", "__all__", "__package__"}
)
"""What a module says of itself, none of which is a function."""


def imported_inside(function: FunctionType, own_file: str) -> Iterator[ModuleType | str]:
    """Yield the modules that a function's code imports, or why one cannot be followed, in words.

    A module that is not loaded yet is imported if the subject's own file names it, if it is of the function's
    package or lies beside its file: other packages may name any other in functions that nobody calls.
    What no one can import is left out: the function comes to nothing of it.
    """
    for name in dict.fromkeys(_imports(function.__code__, function.__globals__)):
        module = sys.modules.get(name)
        if module is None and _is_subjects(name):
            if function.__code__.co_filename != own_file and not _is_near(name, function):
                yield f"{function.__qualname__} imports {name} inside itself, which is not followed"
                continue
            try:
                module = _imported(name)
            except ImportError:
                continue
            except (Exception, SystemExit) as error:
                yield f"{function.__qualname__} imports {name}, which raises {type(error).__name__}"
        if module is not None:
            yield module


def _imported(name: str) -> ModuleType:
    """Import a module as a call of the subject does: where torch sees no device, on one that is played.

    The first try is without, since not every subject runs where a device is played.
    """
    try:
        with settings_kept():
            return importlib.import_module(name)
    except (Exception, SystemExit):
        if current() is not None or torch.cuda.is_available():
            raise
    from verifier.machine import session

    with session(), settings_kept():
        return importlib.import_module(name)


def computed_inside(function: FunctionType) -> Iterator[str]:
    """Yield where a function takes objects of modules by names that only its run computes."""
    node = node_of(function.__code__.co_filename, function.__code__.co_firstlineno)
    known = function.__globals__
    for inner in _candidates(node) if node is not None else ():
        if _is_computed(inner, known) and not _asked_about_itself(node, inner):
            yield f"{function.__qualname__} takes {ast.unparse(inner)} by a computed name"


@lru_cache(maxsize=4096)
def _candidates(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return what `_is_computed` may hold of, whatever the names stand for."""
    return tuple(inner for inner in ast.walk(node) if _may_be_computed(inner))


def _may_be_computed(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "ops"
    if isinstance(node, ast.Call):
        return _called(node) in {*_IMPORTING, "getattr"}
    return isinstance(node, ast.Subscript) and _is_globals(node.value)


def _called(node: ast.Call) -> str:
    name: str = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name


def _asked_about_itself(node: ast.AST | None, computed: ast.AST) -> bool:
    """Return whether a function keeps what it computed by a name, and reads only such as `__version__`."""
    every = list(ast.walk(node)) if node is not None else []
    kept = [one.targets[0] for one in every if isinstance(one, ast.Assign) and one.value is computed]
    names = {one.id for one in kept if isinstance(one, ast.Name)}
    uses = [one for one in every if isinstance(one, ast.Name) and one.id in names]
    asked = [use for use in map(_asked_of, every) if use in uses]
    return bool(names) and len(asked) + len(kept) == len(uses)


def _asked_of(node: ast.AST) -> ast.AST | None:
    """Return the module that a node asks about itself, by an attribute or by `getattr`."""
    match node:
        case ast.Attribute(value=value, attr=str(name)) if name in _OF_ITSELF:
            return value
        case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(name)), *_]):
            return value if name in _OF_ITSELF else None
        case _:
            return None


def _imports(code: CodeType, known: Mapping[str, object]) -> Iterator[str]:
    """Yield the full names that the import statements of a code name; some may be no modules."""
    for level, name, names in _import_statements(code):
        full = name
        if level:
            package = str(known.get("__package__") or str(known.get("__name__", "")).rpartition(".")[0])
            with contextlib.suppress(ImportError):
                full = importlib.util.resolve_name("." * level + name, package)
        yield full
        yield from (f"{full}.{part}" for part in names or ())


@lru_cache(maxsize=4096)
def _import_statements(code: CodeType) -> tuple[tuple[int, str, tuple[str, ...] | None], ...]:
    """Return level, name and what is taken of it of each import statement, those of inner functions last."""
    found = []
    if any(instruction == _IMPORT for instruction in code.co_code[::2]):
        instructions = list(dis.get_instructions(code))
        for number, one in enumerate(instructions):
            if one.opname == "IMPORT_NAME":
                level, names = (before.argval for before in instructions[number - 2 : number])
                found.append((level, one.argval, names))
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return (*found, *(one for constant in inner for one in _import_statements(constant)))


def _is_subjects(name: str) -> bool:
    """Return whether there is a module of that name which is no library's, without importing anything."""
    parent, _, _ = name.rpartition(".")
    if parent and parent not in sys.modules:
        return _is_subjects(parent)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return False
    home = _home(spec)
    return home is not None and is_of_subjects(home)


def _home(spec: ModuleSpec | None) -> str | None:
    """Return the file of a module, or something in the folder of a package without one."""
    if spec is None:
        return None
    if spec.origin is not None:
        return spec.origin
    return next((f"{folder}/__init__.py" for folder in spec.submodule_search_locations or ()), None)


def _is_near(name: str, function: FunctionType) -> bool:
    """Return whether a module is of a function's package, or in its folder."""
    top = name.partition(".")[0]
    if top == str(function.__module__).partition(".")[0]:
        return True
    found = _home(importlib.util.find_spec(top))
    folder = Path(function.__code__.co_filename).resolve().parent
    return found is not None and folder in Path(found).resolve().parents


def _is_computed(node: ast.AST, known: Mapping[str, object]) -> bool:
    if isinstance(node, ast.Attribute):
        inside = node.value
        return (
            isinstance(inside, ast.Attribute)
            and inside.attr == "ops"
            and getattr(_named(inside.value, known), "__name__", "") == "torch"
            and node.attr not in _OF_TORCH
        )
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Subscript) and _is_globals(node.value) and not _is_text(node.slice)
    called = _called(node)
    if called in _IMPORTING:
        name = node.args[0] if node.args else None
        return not (isinstance(name, ast.Constant) and not _is_subjects(str(name.value)))
    if called != "getattr" or len(node.args) < 2 or _is_text(node.args[1]):
        return False
    module = _named(node.args[0], known)
    file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
    return file is not None and is_of_subjects(file)


def _named(node: ast.AST, known: Mapping[str, object]) -> object:
    """Return the module that an expression names, as far as that is plain to see."""
    if isinstance(node, ast.Name):
        return known.get(node.id) or sys.modules.get(node.id)
    if isinstance(node, ast.Attribute):
        module = _named(node.value, known)
        return vars(module).get(node.attr) if isinstance(module, ModuleType) else None
    return None


def _is_globals(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "globals"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)
