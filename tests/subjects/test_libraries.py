"""Libraries: a file declares an installed package, tells versions apart and says what it does not reach."""

import json
import os
import sys
import textwrap

import pytest

from verifier.audit.request import SelectionError
from verifier.commands.early_answers import must_be_libraries
from verifier.records.library import Library, fits
from verifier.records.subject import KnownDefect
from verifier.subjects import libraries
from verifier.subjects.bare_packages import leave_out_init, prepare
from verifier.subjects.libraries import libraries_found, library_files, library_of
from verifier.subjects.library_names import Named, Sources
from verifier.subjects.load_file import LoadError, load

PACKAGE = {
    "__init__.py": "from .rows import softmax as handed_on\n",
    "rows.py": """
        import torch
        from toy_norms.parts import exp_norm as computed

        def softmax(x, dim):
            return _inner(x, dim)

        def _inner(x, dim):
            return torch.softmax(x, dim) if x.numel() else computed(x)

        def log_softmax(x, dim):
            return torch.log_softmax(x, dim)

        class Softmax:
            def forward(self, x):
                return softmax(x, -1)
        """,
    "parts.py": "def exp_norm(x):\n    return x\n\ndef other(x):\n    return x\n",
    "more/group_norm.py": """
        from ..rows import log_softmax

        def forward(x):
            return x

        class GroupNorm:
            def run(self, x):
                return forward(log_softmax(x, -1))
        """,
    "more/__init__.py": "",
    "wrapper.py": """
        import toy_norms.rows
        from toy_norms import handed_on

        WIDE = 3

        def softmax_of_heads(x):
            return handed_on(x, -1)
        """,
}
DECLARED = """
from verifier import KnownDefect, Library, subject

LIBRARY = Library(distribution="toy-norms", package="toy_norms")
KIND = dict(op="softmax", language="torch", variance="softmax", dtypes=("float32",))

def _called(input, dim):
    from toy_norms.rows import softmax

    return softmax(input, dim)

@subject(**KIND, known_defects=(
    KnownDefect(check="forward_error", reason="rows of two", where=lambda case: case.columns == 2,
                versions="toy-norms<2"),
))
def toy_softmax(input, dim=-1):
    return _called(input, dim)

@subject(**KIND)
def toy_newer(input, dim=-1):
    from toy_norms.rows import newer_softmax

    return newer_softmax(input, dim)
"""
QUICK = ("--check", "forward_error", "--workers", "1")


def install(folder, version="1.4"):
    for name, text in PACKAGE.items():
        file = folder / "toy_norms" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    for old in folder.glob("*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    info = folder / f"toy_norms-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toy-norms\nVersion: {version}\n")


@pytest.fixture
def toy(tmp_path, monkeypatch, kernel_file):
    """Return the file that declares an installed package."""
    install(tmp_path / "installed")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.setattr(libraries, "sources_of", lambda name: Sources(name, tmp_path / "installed" / name))
    file = kernel_file(DECLARED, name="toy.py", head="")
    yield file
    for name in [n for n in sys.modules if n.split(".")[0] == "toy_norms"]:
        del sys.modules[name]


def test_modules_come_without_an_init_that_asks_for_a_device(toy, tmp_path, command):
    """Whoever declares it so gets the package's modules, and none of what its `__init__` does."""
    for name in ("__init__.py", "more/__init__.py"):
        (tmp_path / "installed" / "toy_norms" / name).write_text("raise RuntimeError('no device')\n")
    status, output, _ = command("audit", toy, "--subject", "toy_softmax", *QUICK)
    assert status != 0
    assert "no device" in output
    packages = 'package="toy_norms", without_init=("toy_norms", "toy_norms.more"))'
    bare = toy.with_name("bare.py")
    bare.write_text(toy.read_text().replace('package="toy_norms")', packages))
    load(bare)
    from toy_norms.more.group_norm import GroupNorm, log_softmax

    assert sys.modules["toy_norms"].more.group_norm.GroupNorm is GroupNorm
    assert log_softmax is sys.modules["toy_norms.rows"].log_softmax
    assert leave_out_init("nowhere_installed") is None
    assert leave_out_init("nowhere_installed.more") is None
    status, output, _ = command("audit", bare, "--subject", "toy_softmax", *QUICK)
    assert status == 0, output


def test_a_library_is_imported_with_what_its_declaration_says(toy, tmp_path, command, monkeypatch):
    """What an `__init__` that is left out would hand on, and variables of the environment."""
    folder = tmp_path / "installed" / "toy_norms"
    (folder / "__init__.py").write_text("raise RuntimeError('no device')\n")
    parts = "import os\nWIDTH = int(os.environ['TOY_WIDTH'])\n" + PACKAGE["parts.py"]
    (folder / "parts.py").write_text(parts)
    asked = textwrap.dedent(PACKAGE["rows.py"]).replace(
        "import torch", "import torch\nfrom . import WIDTH\nassert WIDTH == 7"
    )
    (folder / "rows.py").write_text(asked)
    monkeypatch.setenv("TOY_WIDTH", "of nobody")  # so that it is gone afterwards
    monkeypatch.delenv("TOY_WIDTH")
    text = toy.read_text().replace(
        'package="toy_norms")',
        'package="toy_norms", without_init=("toy_norms",), environment=("TOY_WIDTH=7",), '
        'handed_on=("toy_norms.parts.WIDTH",))',
    )
    toy.write_text(text)
    status, output, _ = command("audit", toy, "--subject", "toy_softmax", *QUICK, "--check", "global_state")
    assert status == 0, output
    with pytest.raises(AttributeError, match="module 'toy_norms' has no attribute 'HEIGHT'"):
        sys.modules["toy_norms"].HEIGHT  # noqa: B018
    monkeypatch.setenv("TOY_WIDTH", "8")  # the user's own
    prepare(library_of(toy))
    assert os.environ["TOY_WIDTH"] == "8"


# -- which version -------------------------------------------------------------------------------


def test_versions_are_told_apart(toy, tmp_path):
    library = library_of(toy)
    assert library == Library(distribution="toy-norms", package="toy_norms")
    assert library.version == "1.4"
    assert library.within(">=1,<2")
    assert not library.within("<1.4")
    install(tmp_path / "installed", "2.0rc1")
    assert library.version == "2.0rc1"
    assert library.within(">1.4")
    assert not library.within("<2")  # candidates of 2 are none of those before (PEP 440)
    assert not fits("nowhere-installed")
    assert not fits("nowhere-installed<2")
    with pytest.raises(ValueError, match="is no requirement such as"):
        fits("toy norms below two")


def test_a_defect_is_known_of_the_versions_that_have_it(toy, tmp_path):
    (defect,) = next(s for s in load(toy).subjects if s.name == "toy_softmax").known_defects
    assert defect.observable("eager", "float32")
    install(tmp_path / "installed", "2.0")
    assert not defect.observable("eager", "float32")
    assert not defect.of_this_version
    assert KnownDefect(check="finite", reason="always").of_this_version


def test_a_requirement_that_is_none_is_refused_where_it_is_declared(kernel_file):
    file = kernel_file(DECLARED.replace("toy-norms<2", "toy norms < two"), name="toy.py", head="")
    with pytest.raises(LoadError, match="is no requirement"):
        load(file)


# -- what is and is not reached ------------------------------------------------------------------


def test_norms_that_no_declaration_reaches_are_named(toy, tmp_path):
    (found,) = libraries_found([str(toy), str(toy)])
    assert (found.distribution, found.package, found.version) == ("toy-norms", "toy_norms", "1.4")
    assert found.absent == {"toy_newer": ["toy_norms.rows.newer_softmax"]}
    # What the softmax uses runs with it, and a wrapper is that softmax; of the rest, parts are left out.
    assert found.unreached == {"toy_norms.more.group_norm": ["GroupNorm"]}
    sources = Sources("toy_norms", tmp_path / "installed" / "toy_norms")
    left = sources.unreached([Named("toy_norms.rows", "log_softmax")])
    assert {str(one).removeprefix("toy_norms.") for one in left} == {
        "rows.Softmax",
        "wrapper.softmax_of_heads",
        "more.group_norm.GroupNorm",
    }


def test_names_are_found_wherever_a_module_takes_them_from(toy, tmp_path):
    sources = Sources("toy_norms", tmp_path / "installed" / "toy_norms")
    assert sources.home(Named("toy_norms.wrapper", "handed_on")) == Named("toy_norms.rows", "softmax")
    for there in ("toy_norms.handed_on", "toy_norms.rows", "toy_norms.wrapper.WIDE", "elsewhere.anything"):
        assert sources.has(Named(*there.rsplit(".", 1))), there
    for absent in ("toy_norms.rows.newer", "toy_norms.nowhere", "toy_norms.nowhere.softmax"):
        assert not sources.has(Named(*absent.rsplit(".", 1))), absent


# -- the command ---------------------------------------------------------------------------------


def test_an_audit_says_version_what_is_absent_and_what_is_not_reached(toy, command, tmp_path):
    status, out, error = command("audit", toy, *QUICK, "--json", "told.json", "--report", "report")
    assert status == 0, out + error
    assert "toy_newer: not run: toy-norms 1.4 has no toy_norms.rows.newer_softmax\n" in out
    assert "toy-norms 1.4: no declaration reaches 1 of its norms (-v names them)\n" in out
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["versions"]["toy-norms"] == "1.4"
    assert told["libraries"] == [
        {
            "distribution": "toy-norms",
            "package": "toy_norms",
            "version": "1.4",
            "path": str(toy),
            "absent": {"toy_newer": ["toy_norms.rows.newer_softmax"]},
            "unreached": {"toy_norms.more.group_norm": ["GroupNorm"]},
        }
    ]
    (page,) = (tmp_path / "report").glob("*.md")
    text = page.read_text().replace("\\", "")
    assert "toy-norms 1.4" in text
    assert "no declaration reaches toy_norms.more.group_norm: GroupNorm" in text
    _, out, _ = command("audit", toy, *QUICK, "-v")
    assert "    toy_norms.more.group_norm: GroupNorm\n" in out


def test_a_library_that_is_not_installed_is_wrong_usage(kernel_file, command):
    file = kernel_file(DECLARED.replace("toy-norms", "toy-norms-of-nobody"), name="toy.py", head="")
    status, _, error = command("audit", file, *QUICK)
    assert status == 2
    assert error == (
        "norm-verifier: toy: toy-norms-of-nobody: not installed (pip install --no-deps toy-norms-of-nobody)\n"
    )


def test_a_library_that_no_index_has_says_how_it_is_installed(kernel_file, command):
    text = DECLARED.replace('"toy-norms"', '"toy-norms-of-nobody", installed_by="make in a clone"')
    status, _, error = command("audit", kernel_file(text, name="toy.py", head=""), *QUICK)
    assert status == 2
    assert error == "norm-verifier: toy: toy-norms-of-nobody: not installed (make in a clone)\n"


def test_what_a_library_needs_is_asked_for(kernel_file, command, toy):
    needy = toy.read_text().replace('package="toy_norms"', 'package="toy_norms", needs=("nowhere-to-find",)')
    status, _, error = command("audit", kernel_file(needy, name="needy.py", head=""), *QUICK)
    assert status == 2
    assert "nowhere-to-find, which toy-norms needs: not installed" in error


def test_libraries_are_named_listed_and_completed(command, monkeypatch):
    status, _, error = command("audit", "--library", "ligr")
    assert status == 2
    assert error.startswith("norm-verifier: no library 'ligr' (did you mean liger?); there are: ")
    _, out, _ = command("list")
    for name, file in library_files().items():
        library = library_of(file)
        shown = f"{library.distribution} {library.version}" if not library.absent else "not installed"
        line = next(one for one in out.splitlines() if one.split()[:1] == [name])
        assert shown in line


@pytest.mark.parametrize("name", library_files())
def test_the_subjects_of_a_library_bear_its_name(name):
    """Several libraries have a layer norm, and a report names them all."""
    found = load(library_files()[name])
    assert found.library is not None
    assert found.subjects
    assert all(s.name.startswith(f"{name}_") for s in found.subjects)
    assert all(not s.claim.assumed & {"variance"} for s in found.subjects)


def test_a_built_in_library_is_audited_by_its_name(command, toy, monkeypatch):
    monkeypatch.setattr(libraries, "builtin_folder", lambda: toy.parent)
    monkeypatch.setattr(libraries, "FOLDER", ".")
    status, out, error = command("audit", "--library", "toy", *QUICK, "--subject", "toy_softmax")
    assert status == 0, out + error
    assert "toy-norms 1.4: " in out


def test_a_library_is_named_with_hyphens_too():
    files = library_files()
    both = [files["flash_attention"]] * 2
    assert must_be_libraries(["flash-attention", "flash_attention"]) == both
    with pytest.raises(
        SelectionError, match=r"no library 'flesh-attention' \(did you mean flash_attention\?"
    ):
        must_be_libraries(["liger", "flesh-attention"])
