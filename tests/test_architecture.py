"""The arrows between packages, and what no file may do; read off the sources, nothing is imported."""

import ast
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("verifier", "strategies")
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
KERNELS = sorted((ROOT / "kernels").glob("*.py"))


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


def importers(wanted, among):
    """Return 'importer: imported' for modules under `among` that import something under `wanted`."""
    return sorted(
        f"{module}: {name}"
        for module, names in imports().items()
        if under(module, among)
        for name in names
        if any(under(name, w) for w in wanted)
    )


def under(name, package):
    return name == package or name.startswith(f"{package}.")


FORBIDDEN = {
    "strategies": ("verifier", "kernels", "tests", "triton"),
    "verifier": ("kernels", "tests", "benchmarks"),
    "verifier.arithmetic": ("verifier.variance", "verifier.affine", "verifier.ops", "verifier.checks"),
    "verifier.trees": ("verifier.variance", "verifier.affine", "verifier.ops", "verifier.checks"),
    "verifier.variance": ("verifier.affine", "verifier.ops", "verifier.checks", "verifier.examine"),
    "verifier.affine": ("verifier.ops", "verifier.checks", "verifier.examine"),
    "verifier.ops": (
        "verifier.checks",
        "verifier.examine",
        "verifier.audit",
        "verifier.backends",
        "verifier.runner",
    ),
    "verifier.checks": ("verifier.examine", "verifier.audit", "verifier.command_line"),
    "verifier.oracle": (
        "verifier.variance",
        "verifier.machine",
        "verifier.backends",
        "verifier.affine",
        "verifier.ops",
        "verifier.checks",
        "verifier.runner",
    ),
    "verifier.machine": (
        "verifier.ops",
        "verifier.checks",
        "verifier.oracle",
        "verifier.affine",
        "verifier.variance",
        "verifier.examine",
    ),
    "verifier.examine": ("verifier.audit", "verifier.command_line", "verifier.fuzz"),
    "verifier.audit": ("verifier.command_line", "verifier.fuzz", "verifier.saving"),
}


@pytest.mark.parametrize("package", list(FORBIDDEN))
def test_the_arrows_point_one_way(package):
    assert any(under(module, package) for module in imports()), f"there is no {package}"
    assert importers(FORBIDDEN[package], package) == []


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
    allowed = {
        "verifier",
        *(f"verifier.{word}" for word in public_names()),
        *(f"verifier.{module}" for module in ("subjects", "trees", "numbers", "cuda_source")),
    }
    deeper = {
        n
        for n in taken - allowed
        if not n.startswith(
            ("verifier.subjects.", "verifier.trees.", "verifier.numbers.", "verifier.cuda_source.")
        )
    }
    assert deeper == set()
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


def test_every_module_says_what_it_is_in_one_sentence():
    said = {name_of(path): ast.get_docstring(tree_of(path)) or "" for path in SOURCES}
    assert [name for name, text in said.items() if not text.split("\n\n")[0].rstrip().endswith(".")] == []


def test_tests_have_names_of_their_own():
    """pytest imports test files by their bare name: two of one name would shadow each other."""
    stems = [
        p.stem for p in TESTS if p.stem not in {"conftest", "__init__"} and "faulty_kernels" not in p.parts
    ]
    assert sorted({s for s in stems if stems.count(s) > 1}) == []
