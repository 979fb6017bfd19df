"""The arrows between packages, and what no file may do; read off the sources, nothing is imported."""

import ast
import re
from functools import cache
from itertools import chain

import pytest
from import_graph import (
    FOLDERS,
    PACKAGES,
    ROOT,
    SOURCES,
    arrows,
    imported,
    imports,
    name_of,
    nodes,
    tree_of,
    under,
)

KERNELS = sorted((ROOT / "kernels").glob("*.py"))


def importers(wanted, among):
    """Return 'importer: imported' for modules under `among` that import something under `wanted`."""
    return sorted(
        f"{module}: {name}"
        for module, names in imports().items()
        if under(module, among)
        for name in names
        if any(under(name, w) for w in wanted)
    )


def height(module):
    first, *rest = module.split(".")
    return 0 if first == "strategies" else 1 + FOLDERS.index(rest[0])


def circles(graph):
    """Return the strongly connected components of more than one module, in two walks."""
    order, seen = [], set()

    def walk(start, following, visit):
        stack = [(start, iter(sorted(following[start])))]
        seen.add(start)
        while stack:
            module, rest = stack[-1]
            onward = next((n for n in rest if n not in seen), None)
            if onward is None:
                visit(module)
                stack.pop()
            else:
                seen.add(onward)
                stack.append((onward, iter(sorted(following[onward]))))

    for module in sorted(graph):
        if module not in seen:
            walk(module, graph, order.append)
    backward = {module: {n for n in graph if module in graph[n]} for module in graph}
    seen.clear()
    found = []
    for module in reversed(order):
        if module not in seen:
            members = []
            walk(module, backward, members.append)
            found.append(sorted(members))
    return [members for members in found if len(members) > 1]


def test_the_folders_are_the_listed_ones():
    top = {p.name for p in (ROOT / "verifier").iterdir() if p.name not in {"__pycache__", "kernels"}}
    assert top == {*FOLDERS, "__init__.py", "__main__.py", "py.typed"}


def test_arrows_between_folders_point_down():
    up = [f"{m}: {n}" for m, names in arrows().items() for n in sorted(names) if height(n) > height(m)]
    assert sorted(up) == []


def test_no_module_imports_itself_through_others():
    assert circles(arrows()) == []


def test_circles_are_seen():
    """The search is a check too: circles of two and three, one inside a longer walk, and none."""
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [["a", "b"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"d", "a"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_two_public_classes_have_one_name():
    homes = {}
    for path in SOURCES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
    taken = [f"{name_of(path)}: {name}" for path in SOURCES for name in aliases(path) if name in homes]
    assert taken == []  # an alias or a type variable of the same name would be read as the class


def aliases(path):
    """Return the names that a module binds at its top level and writes as classes are written."""
    for node in tree_of(path).body:
        bound = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in bound if isinstance(target, ast.Name)]
        yield from (name for name in names if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name))


@cache
def bound_names(path):
    """Return what a module binds at its top level, whatever binds it; None if it makes names when asked."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return None if "__getattr__" in found else found


def test_what_tests_and_benchmarks_import_is_there():
    """Some of these files no test imports: what they ask for is looked up in the sources."""
    known = {name_of(path): path for path in SOURCES}
    missing = []
    for path in sorted(p for folder in ("tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")):
        for node in nodes(path):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in PACKAGES:
                continue
            home = known.get(node.module)
            names = home and bound_names(home)
            for alias in node.names:
                there = home and (names is None or alias.name in names)
                if not there and f"{node.module}.{alias.name}" not in known:
                    missing.append(f"{path.relative_to(ROOT)}: {node.module}.{alias.name}")
    assert missing == []


def test_the_verifier_imports_neither_kernels_nor_tests():
    assert importers(("kernels", "tests", "benchmarks"), "verifier") == []
    assert importers(("verifier", "kernels", "tests", "triton"), "strategies") == []


def test_torch_is_never_the_oracle():
    """It carries tensors in, and computes nothing."""
    users = {m for m, names in imports().items() if under(m, "verifier.oracle") and "torch" in names}
    for module in sorted(users):
        path = ROOT / f"{module.replace('.', '/')}.py"
        path = path if path.is_file() else path.with_suffix("") / "__init__.py"
        called = {
            node.func.attr
            for node in nodes(path)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "torch"
        }
        assert called <= {"from_numpy", "as_tensor", "is_tensor", "zeros"}, f"{module} calls torch.{called}"


@pytest.mark.parametrize("path", KERNELS, ids=[p.stem for p in KERNELS])
def test_a_kernel_file_takes_only_the_declaration_from_the_verifier(path):
    stems = {p.stem for p in KERNELS}
    taken = {name for name in imported(path) if under(name, "verifier")}
    allowed = {"verifier", *(f"verifier.{word}" for word in public_names())}
    assert taken <= allowed
    assert not {n for n in imported(path) if n.split(".")[0] in {"tests", "strategies", "kernels", *stems}}


def public_names():
    tree = ast.parse((ROOT / "verifier" / "__init__.py").read_text())
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    )


def test_kernels_is_no_import_package():
    assert not (ROOT / "kernels" / "__init__.py").exists()
    stems = [p.stem for p in KERNELS]
    assert len(stems) == len(set(stems))


# What reads the environment, probes devices, registers or runs something.
FORBIDDEN_CALLS = frozenset(
    [
        "open",
        "getenv",
        "is_available",
        "read_text",
        "read_bytes",
        "device_count",
        "get_device_properties",
        "print",
        "import_module",
        "iter_modules",
        "exec",
        "eval",
        "register_profile",
        "load_profile",
        "system",
        "run",
        "Popen",
        "seed",
        "manual_seed",
        "set_num_threads",
        "set_default_dtype",
        "which",
        "iterdir",
        "glob",
        "rglob",
        "is_file",
        "exists",
        "mkdir",
        "simplefilter",
        "filterwarnings",
        "basicConfig",
        "register",
    ]
)


def calls_at_import(path):
    """Names of functions called while the module is imported; bodies of functions are left out."""
    pending = list(tree_of(path).body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += [*getattr(node, "decorator_list", []), *node.args.defaults]
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in {
            '__name__ == "__main__"',
            "__name__ == '__main__'",
        }:
            continue
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).split(".")[-1], node.lineno
        pending += list(ast.iter_child_nodes(node))


def test_nothing_works_at_import():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}()"
        for path in SOURCES
        if path.name != "__main__.py"
        for name, line in calls_at_import(path)
        if name in FORBIDDEN_CALLS
    ]
    assert found == []


def test_nothing_reads_the_environment_at_import():
    found = []
    for path in SOURCES:
        every = list(nodes(path))
        functions = [n for n in every if isinstance(n, ast.FunctionDef)]
        inside = {id(n) for function in functions for n in ast.walk(function)}
        found += [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in every
            if isinstance(node, ast.Attribute) and node.attr == "environ" and id(node) not in inside
        ]
    assert found == []


def called(node):
    """Return the last name of what is called, be it passed on for the subject."""
    name = ast.unparse(node.func).split(".")[-1]
    return ast.unparse(node.args[0]).split(".")[-1] if name == "passed_on" else name


def tolerances(path):
    for node in nodes(path):
        if isinstance(node, ast.Attribute | ast.Name):
            word = node.attr if isinstance(node, ast.Attribute) else node.id
            if word in {
                "allclose",
                "isclose",
                "assert_close",
                "assert_allclose",
                "assert_almost_equal",
                "approx",
            }:
                yield node.lineno, word
        if isinstance(node, ast.Call) and called(node) not in {"gradcheck", "gradgradcheck"}:
            yield from ((node.lineno, k.arg) for k in node.keywords if k.arg in {"rtol", "atol"})


TESTS = sorted((ROOT / "tests").rglob("*.py"))


def test_no_verdict_and_no_test_has_a_tolerance():
    """torch's gradcheck alone takes one, which is computed from theorems."""
    found = [
        f"{p.relative_to(ROOT)}:{line}: {word}" for p in chain(SOURCES, TESTS) for line, word in tolerances(p)
    ]
    assert found == []


TEXTS = sorted(
    p
    for folder in ("verifier", "strategies", "kernels", "tests", "benchmarks", "docs")
    for p in (ROOT / folder).rglob("*")
    if p.suffix in {".py", ".cu", ".md", ".json", ".toml"} and ".hypothesis" not in p.parts
)


def test_nothing_names_a_path_of_the_machine_it_was_written_on():
    homes = ("/" + "work/", "/" + "home/", "/" + "Users/", "/" + "root/")
    found = [
        str(p.relative_to(ROOT))
        for p in TEXTS
        if any(home in p.read_text(errors="replace") for home in homes)
    ]
    assert found == []


MOST_ANY = {
    "verifier": 1,
    "verifier.arithmetic": 9,
    "verifier.audit": 3,
    "verifier.bounds": 8,
    "verifier.cases": 2,
    "verifier.checks": 11,
    "verifier.commands": 8,
    "verifier.execution": 19,
    "verifier.machine": 113,
    "verifier.ops": 29,
    "verifier.oracle": 5,
    "verifier.records": 14,
    "verifier.subjects": 19,
}
"""How often each folder says `Any`, which switches the type checker off: where a kernel's own arguments and
results pass, where torch, Triton, Arb and structured arrays have no types, and in JSON data of files. Whoever
gives a type in its place writes the smaller number here."""


def test_no_folder_says_any_more_often():
    said = {}
    for path in SOURCES:
        folder = ".".join(name_of(path).split(".")[:2])
        said[folder] = said.get(folder, 0) + sum(
            isinstance(node, ast.Name) and node.id == "Any" for node in nodes(path)
        )
    assert {folder: n for folder, n in said.items() if n > MOST_ANY.get(folder, 0)} == {}


def test_every_module_says_what_it_is_in_one_sentence():
    said = {name_of(path): ast.get_docstring(tree_of(path)) or "" for path in SOURCES}
    assert [name for name, text in said.items() if not text.split("\n\n")[0].rstrip().endswith(".")] == []


def test_tests_have_names_of_their_own():
    """pytest imports test files by their bare name: two of one name would shadow each other."""
    stems = [
        p.stem for p in TESTS if p.stem not in {"conftest", "__init__"} and "faulty_kernels" not in p.parts
    ]
    assert sorted({s for s in stems if stems.count(s) > 1}) == []
