"""The files that make up a kernel, and copies of them."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

from verifier.audit.mutation import cuda_text, python_source
from verifier.audit.mutation.mutation import Mutation
from verifier.subjects.cuda_outline import included

_SOURCES = (".py", ".cu", ".cuh")
LARGEST_FOLDER = 2000
"""Files beside a kernel that are looked at, at most: beyond, it does not lie in a folder of kernels."""


def family(path: Path) -> list[Path]:
    """Return a kernel file and the sources beside it that it uses, directly or through another of them.

    A Python file uses what it imports, what a string in its code names, and the .cu file of its own stem;
    a CUDA file what it includes.
    """
    siblings = {
        p.name: p
        for p in sorted(path.parent.iterdir())[:LARGEST_FOLDER]
        if p.suffix in _SOURCES and p.is_file()
    }
    found, waiting = [path], [path]
    while waiting:
        one = waiting.pop()
        if one.suffix == ".py":
            used = _used_by_python(one.read_text(encoding="utf-8")) | {f"{one.stem}.cu"}
        else:
            used = {Path(source).name for source in included([str(one)])}
        for other in (siblings[name] for name in sorted(used & siblings.keys())):
            if other not in found:
                found.append(other)
                waiting.append(other)
    return found


def _used_by_python(text: str) -> set[str]:
    """Return names of files that a Python file may use.

    Raises:
        SyntaxError: it is no Python.

    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {f"{alias.name}.py" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(f"{node.module}.py")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value, f"{node.value}.py"}
    return names


def mutations(path: Path) -> list[Mutation]:
    """List the single mutations of a kernel file and of the sources beside it that it uses.

    Raises:
        SyntaxError: a Python file among them is none.

    """
    return [
        mutation
        for file in family(path)
        for mutation in (python_source if file.suffix == ".py" else cuda_text).mutations(file)
    ]


def copied(path: Path, folder: Path, mutation: Mutation | None = None) -> Path:
    """Copy a kernel file and what it uses into a folder, with a mutation in one of them; return the copy."""
    for file in family(path):
        shutil.copy(file, folder / file.name)
    if mutation is not None:
        text = mutation.file.read_text(encoding="utf-8")
        (folder / mutation.file.name).write_text(mutation.applied(text), encoding="utf-8")
    return folder / path.name
