"""What pages by hand point at is there: links, files, dotted names, functions in files, drawn arrows."""

import ast
import re
from functools import cache
from importlib import import_module

import pytest
from import_graph import FOLDERS, PICTURE, ROOT, drawn, redrawn, reduced, tree_of

from verifier.checks import checks

PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md"]
    + [p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "reference"]
)
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(py|md|cu|cuh|toml|json|txt)|\.?[\w-]+(/[\w.-]+)*/")
DOTTED = re.compile(r"(verifier|strategies)(\.\w+)+")
STEP = re.compile(r"^\| `([\w.]+)` \| `([\w./]+\.py)` \|", re.MULTILINE)
"""A line of a table that names a function, or a class, and its file."""
CAUGHT = re.compile(r"^\| [^|]+ \| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|$", re.MULTILINE)
"""A line of a table that names a check and the faulty kernels that it catches."""
EXAMPLES = {
    "my_kernel.py",
    "my_norm.cu",
    "my_norm.py",
    "norm-verifier-findings/",
    "report.json",
    "report.md",
    "report.schema.json",
    "verifier/checks/odd.py",
    "verifier.checks.odd",
    "...",
}
"""Files and links of the reader, that pages speak of; what has NAME in it stands for many."""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page):
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def spans(page):
    return CODE.findall(prose(page))


@cache
def stems():
    return {
        p.name
        for folder in ("verifier", "strategies", "tests", "benchmarks")
        for p in (ROOT / folder).rglob("*.py")
    }


def anchors(page):
    """Return the places in a page that a link may name."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@cache
def defined(path):
    """Return the functions, classes, methods (also after their class's name) and constants of a file."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@each_page
def test_links_lead_somewhere(page):
    broken = []
    for target, anchor in LINK.findall(prose(page)):
        if target.startswith("http") or target in EXAMPLES:
            continue
        end = (page.parent / target) if target else page
        if not end.exists() or (anchor and anchor not in anchors(end)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@each_page
def test_files_that_are_named_exist(page):
    named = {span for span in spans(page) if FILE.fullmatch(span) and "NAME" not in span} - EXAMPLES
    near = (ROOT, ROOT / "verifier", ROOT / "tests", page.parent)
    missing = {name for name in named if not any((folder / name).exists() for folder in near)}
    assert sorted(name for name in missing if "/" in name or name not in stems()) == []


@each_page
def test_dotted_names_exist(page):
    missing = []
    for name in {span for span in spans(page) if DOTTED.fullmatch(span)} - EXAMPLES:
        *parent, last = name.split(".")
        try:
            import_module(name)
        except ModuleNotFoundError:
            if not hasattr(import_module(".".join(parent)), last):
                missing.append(name)
    assert missing == []


@each_page
def test_steps_of_a_walk_are_defined_where_it_says(page):
    steps = STEP.findall(prose(page))
    lost = [f"{file}: {name}" for name, file in steps if name not in defined(ROOT / "verifier" / file)]
    assert lost == []


def test_the_walks_have_steps():
    assert len(STEP.findall(prose(ROOT / "docs" / "walks.md"))) > 40


def test_the_drawn_arrows_are_those_of_today():
    """Else run `python tests/support/import_graph.py docs/architecture.md`."""
    assert {name for _, name in PICTURE.findall(ARCHITECTURE)} == set(drawn())
    assert redrawn(ARCHITECTURE) == ARCHITECTURE


def test_every_folder_has_its_sentence():
    rows = re.findall(r"^\| `verifier/(\w+)/` \| (.+) \|$", ARCHITECTURE, re.MULTILINE)
    assert [name for name, _ in rows] == list(FOLDERS)
    parts = {p.name for p in (ROOT / "verifier" / "machine").iterdir() if p.is_dir()} - {"__pycache__"}
    assert parts == set(re.findall(r"^\| `verifier/machine/(\w+)/` \|", ARCHITECTURE, re.MULTILINE))


def test_the_glossary_is_in_order():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [word.lower() for word in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)][1:]
    words = [word for word in words if not word.startswith("-")]
    assert words == sorted(set(words))


def test_an_arrow_that_follows_from_others_is_left_out():
    assert reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_kernels_that_the_page_of_reach_says_a_check_catches_are_among_those_that_it_names():
    found = CAUGHT.findall((ROOT / "docs" / "explanation" / "reach.md").read_text(encoding="utf-8"))
    assert len(found) > 20
    for name, kernels in found:
        assert {*CODE.findall(kernels)} <= {*checks()[name].CATCHES}
