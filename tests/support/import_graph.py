"""The imports between the modules of this repository, read off the sources, and the pictures drawn of them.

`python tests/support/import_graph.py docs/architecture.md` draws them anew between the markers of the page.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("verifier", "strategies")
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
FOLDERS = (
    "arithmetic",
    "records",
    "oracle",
    "bounds",
    "machine",
    "ops",
    "subjects",
    "cases",
    "execution",
    "checks",
    "audit",
    "commands",
)
"""The folders of verifier/, each above all that it may import; strategies/ lies below them."""
PICTURE = re.compile(r"(<!-- drawn: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""A picture's first marker, with its name, and what stands up to its second."""


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def nodes(path):
    return ast.walk(tree_of(path))


def imported(path):
    """Every module that a file imports, at the top, in functions and for type checkers alike."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache
def imports():
    """Return what each module of the packages imports, by its name; read once, by the worker that asks."""
    return {name_of(path): imported(path) for path in SOURCES}


def arrows():
    """Every import of a module by a module, wherever it stands; those of the package's own names are none."""
    known = imports()
    inner = {m for m in known if m not in {"verifier", "verifier.__main__"}}
    return {module: {name for name in known[module] if name in inner and name != module} for module in inner}


def between(folder_of):
    """Return the arrows between folders; `folder_of` names the folder of a module, None leaves it out."""
    found = {}
    for module, names in arrows().items():
        here = folder_of(module)
        if here is not None:
            found.setdefault(here, set()).update({folder_of(name) for name in names} - {None, here})
    return found


def folder_of(module):
    """Return the folder of verifier/ in which a module lies, or strategies."""
    return module.split(".")[0] if under(module, "strategies") else module.split(".")[1]


def part_of_machine(module):
    """Return the folder of machine/ in which a module lies, the module itself beside them, or None."""
    words = module.split(".")
    return words[2] if under(module, "verifier.machine") and len(words) > 2 else None


def under(name, package):
    return name == package or name.startswith(f"{package}.")


def reduced(graph):
    """Return the arrows of a graph without circles that no longer way replaces."""

    @cache
    def reached(start):
        return frozenset().union(*({n} | reached(n) for n in graph.get(start, ())))

    return {
        start: {n for n in ends if not any(n in reached(other) for other in ends)}
        for start, ends in graph.items()
    }


def drawn():
    """Return the text of each picture by its name."""
    return {"arrows": _picture(), "imports": _table(_with_others()), "machine": _table(_inside_machine())}


def _picture():
    arrows_left = reduced(between(folder_of))
    lines = [f"    {a} --> {b}" for a in (*reversed(FOLDERS), "strategies") for b in sorted(arrows_left[a])]
    return "\n".join(["```mermaid", "graph TD", *lines, "```", ""])


def _with_others():
    """Return the direct arrows of all folders, highest first; kernels and benchmarks stand above them."""
    known = between(folder_of)
    others = {
        name: {_public(m) for path in (ROOT / name).glob("*.py") for m in imported(path)} - {None}
        for name in ("benchmarks", "kernels")
    }
    return {**others, **{name: known[name] for name in (*reversed(FOLDERS), "strategies")}}


def _public(module):
    """Return the folder of an imported name, or verifier for its public names."""
    words = module.split(".")
    if words[0] == "strategies":
        return words[0]
    if words[0] != "verifier":
        return None
    return words[1] if len(words) > 1 and words[1] in FOLDERS else "verifier"


def _inside_machine():
    return dict(sorted(between(part_of_machine).items()))


def _table(graph):
    rows = [f"| {name} | {', '.join(sorted(ends)) or 'nothing'} |" for name, ends in graph.items()]
    return "\n".join(["| folder | imports |", "|---|---|", *rows, ""])


def redrawn(page):
    """Return a page with its pictures as they are today."""
    return PICTURE.sub(lambda found: found[1] + drawn()[found[2]], page)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(redrawn(page.read_text(encoding="utf-8")), encoding="utf-8")
