"""The pages that work something out show what happens: files are written, commands run, outputs compared.

A block ```python whose first line is `# PATH` is a file. A block ```diff changes the last file. A block
```console has commands after `$ ` and their whole output; `...` stands for anything inside a line, and alone
on a line for any lines.
"""

import re
import subprocess
from pathlib import Path

import pytest

from verifier.records.files import cache_folder

ROOT = Path(__file__).parents[2]
CACHES = cache_folder("").parent
"""Those of the tests: a hash of Triton's own files lies there, which takes a second to make."""
BLOCK = re.compile(r"^```(python|diff|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = (
    "tutorial.md",
    "how-to/add-an-op.md",
    "how-to/add-a-check.md",
    "explanation/how-a-theorem-enters.md",
)
LONG = {"norm-verifier describe my_kernel.py", "norm-verifier audit my_kernel.py --dtype float32"}
"""Commands that take long, and that other tests run; what they print is not compared."""


class Reader:
    """Somebody who follows a page in an empty folder."""

    def __init__(self, folder, warm_python):
        self.folder, self.written, self.extension = folder / "work", None, {}
        programs = folder / "bin"
        programs.mkdir()
        self.folder.mkdir()
        for name in ("tests", "benchmarks"):
            (self.folder / name).symlink_to(ROOT / name)
        (programs / "python").write_text(warm_python.shell_script())
        (programs / "norm-verifier").write_text('#!/bin/sh\nexec python -m verifier "$@"\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT}",
            "PYTEST_ADDOPTS": f"-p no:cacheprovider --rootdir {ROOT} -c {ROOT / 'pyproject.toml'}",
            "OMP_NUM_THREADS": "1",
            "HOME": f"{folder}",
            "XDG_CACHE_HOME": str(CACHES),
        }

    def writes(self, text):
        """Write the file that a block shows."""
        name = re.match(r"# (\S+)\n", text).group(1)
        self.written = self.folder / name
        self.written.parent.mkdir(parents=True, exist_ok=True)
        self.written.write_text(text)

    def changes(self, text):
        """Replace the lines that begin with a minus by those with a plus."""
        before, after = ("".join(re.findall(rf"^\{sign}(.*\n)", text, re.MULTILINE)) for sign in "-+")
        old = self.written.read_text()
        assert old.count(before) == 1
        self.written.write_text(old.replace(before, after))

    def runs(self, command):
        """Return what a command prints, errors included; an export lasts."""
        if command.startswith("export "):
            name, value = command.removeprefix("export ").split("=", 1)
            self.environment[name] = value.replace("$PWD", str(self.folder))
            return ""
        ended = subprocess.run(
            ["/bin/sh", "-c", command],
            check=False,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return ended.stdout


def pattern(shown):
    """Return the expression that an output has to match as a whole."""
    lines = []
    for line in shown.splitlines():
        if line == "...":
            lines.append(r"(?:.*\n)*?")
        else:
            lines.append(".*?".join(map(re.escape, line.split("..."))) + r" *\n")
    return "".join(lines)


def commands(text):
    """Yield the commands of a block, each with the output that it shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_happens(page, tmp_path, warm_python):
    reader = Reader(tmp_path, warm_python)
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert any(kind == "console" for kind, _ in blocks)
    for kind, text in blocks:
        if kind == "python":
            reader.writes(text)
        elif kind == "diff":
            reader.changes(text)
        else:
            for command, shown in commands(text):
                if command in LONG:
                    continue
                seen = reader.runs(command)
                assert re.fullmatch(pattern(shown), seen), f"$ {command}\n{seen}"


def test_an_output_that_differs_is_noticed():
    shown = "one\n...\nthree is ... here\n"
    assert re.fullmatch(pattern(shown), "one\ntwo\n\nthree is not here\n")
    assert not re.fullmatch(pattern(shown), "one\ntwo\nthree is not there\n")
    assert not re.fullmatch(pattern(shown), "one\nthree is right here\nfour\n")
