"""No text of a subject steers a terminal or fills it: not on the screen, in JSON, in cases, nor in pytest."""

import json
import shlex
import subprocess

import pytest
from audited_kernels import QUICK
from hypothesis import given
from hypothesis import strategies as st

from verifier.records.printable import BLOCK, LINE, block, line, said, shell_word
from verifier.records.verdict import Outcome, Verdict

ESCAPES = "\x1b[31m\x1b]0;title\x07"
NASTY = f"{ESCAPES}\u202ereversed\u2066\x00\r\x9b2J\ud800 [bold]end[/bold]"
KERNELS = f"""
NASTY = {NASTY!a}

@subject(**DECLARED)
def raises(input, weight=None, bias=None, eps=1e-5):
    raise KeyError(NASTY + "\\nPASS  raises  everything\\n" + "x" * 5_000_000)

class Silent(Exception):
    def __str__(self):
        raise ZeroDivisionError("no text")

@subject(**DECLARED)
def says_nothing(input, weight=None, bias=None, eps=1e-5):
    raise Silent

def named(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * 1.01

named.__name__ = "../" + NASTY
oddly_named = subject(**DECLARED)(named)

DEFECT = KnownDefect(check="forward_error", reason=NASTY, where=lambda case: True)

@subject(**{{**DECLARED, "known_defects": (DEFECT,)}})
def defect(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)
"""


@given(st.text(st.characters()))
def test_whatever_a_text_is_its_line_is_printable_and_ascii_stays_readable(text):
    shown = line(text)
    assert shown.isprintable()
    assert line(shown) == shown
    assert (shown == text) == (text.isprintable() and len(text) <= LINE)
    assert all(one.isprintable() for one in block(text).split("\n"))
    assert block(block(text)) == block(text)


def test_what_is_escaped_says_what_it_was():
    assert line("a\x1b[2Jb\u202ec\x00\nd\ud800é") == r"a\x1b[2Jb\u202ec\x00 d\ud800é"
    assert block("a\n\x1bb\r\nc") == "a\n\\x1bb\nc"


def test_a_message_in_colours_is_read_without_them():
    assert line("\x1b[91m\x1b[1merror[INTERNAL]:\x1b[0m no valid code") == "error[INTERNAL]: no valid code"
    assert line("\x1b[\x1b[0m31mred") == r"\x1b[31mred"


@pytest.mark.parametrize("text", ["x" * 5_000_000, "\x1b" * 5_000_000, "x\n" * 2_500_000])
def test_a_long_text_keeps_both_ends_and_says_how_much_is_missing(text):
    for shown, limit in ((line(f"begin {text} end"), LINE), (block(f"begin {text} end"), BLOCK)):
        assert len(shown) <= limit
        assert shown.startswith("begin ")
        assert shown.endswith(" end")
        assert "characters left out" in shown


def test_an_exception_without_a_text_is_said_all_the_same():
    class Silent(Exception):
        def __str__(self):
            raise ZeroDivisionError

    assert said(Silent()) == "Silent: (no text: its __str__ raises ZeroDivisionError)"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_a_path_is_one_word_of_a_command_line_and_printable(path):
    word = shell_word(path)
    assert word.isprintable()
    assert not word.startswith("-")
    if path.isprintable():
        assert shlex.split(word) == ["./" + path if path.startswith("-") else path]


@pytest.mark.parametrize("path", ["a b", "it's", "a\nb", "\x1b[31m", "\u202e'\\x", "\udcff", "$(id)", "-x"])
def test_bash_reads_the_word_as_the_path(path):
    text = f"printf %s {shell_word(path)}"
    read = subprocess.run(["bash", "-c", text], check=True, capture_output=True).stdout
    assert read == (b"./" if path.startswith("-") else b"") + path.encode(errors="surrogateescape")


def test_a_report_shows_no_control_character_of_any_text(command, kernel_file, tmp_path):
    file = kernel_file(KERNELS, folder=tmp_path / f"folder {NASTY[:12]}".replace("/", ""))
    status, out, error = command("audit", file, *QUICK, "--json", "r.json", "--findings", "kept \x1b[2J")
    assert status == 1
    for shown in (out, error, (tmp_path / "r.json").read_text()):
        assert all(one.isprintable() for one in shown.split("\n")), [c for c in shown if not c.isprintable()]
    assert len(out) < 30_000
    assert r"\x1b]0;" in out
    assert "[bold]end[/bold]" in out
    assert "\nPASS  raises" not in out
    assert "says_nothing" in out
    assert "Silent: (no text" in out
    saved = sorted((tmp_path / "kept \x1b[2J").glob("*.json"))
    assert len(saved) == 3
    for path in saved:
        text = path.read_text()
        assert len(text) < 20_000
        message = json.loads(text)["message"]
        assert message.isprintable()
        assert len(message) <= LINE


def test_a_replay_and_its_command_line_survive_an_odd_folder(command, kernel_file, tmp_path):
    file = kernel_file(KERNELS)
    odd = tmp_path / "it's a\nfolder"
    _, out, _ = command("audit", file, "--subject", "raises", *QUICK, "--findings", odd)
    (shown,) = [x.split("norm-verifier ")[1] for x in out.splitlines() if x.startswith("  replay ")]
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {shown}"], check=True, capture_output=True)
    status, out, _ = command(*words.stdout.decode().split("\0")[:-1])
    assert status == 1
    assert all(one.isprintable() for one in out.split("\n"))


def test_on_a_terminal_no_name_is_taken_for_markup_or_for_an_escape():
    import io

    from rich.console import Console

    from verifier.audit.report.terminal import show
    from verifier.audit.run_audit import Report
    from verifier.records.verdict import Line

    listed = Line(subject=NASTY, check="memory", dtype="float32", backend="eager", variance="[red]v[/red]")
    listed.notes.append(NASTY)
    listed.counts[Verdict.PASS] = 1
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=200)
    show(Report(lines=[listed], errors=[NASTY]), console)
    text = file.getvalue()
    assert "\x1b[31m" not in text
    assert "\x1b]" not in text
    assert "\u202e" not in text
    assert "[bold]end[/bold]" in text
    assert "[red]v[/red]" in text


def test_what_a_file_that_does_not_load_says_is_one_printable_line(command, tmp_path):
    (tmp_path / "k.py").write_text(f"raise ValueError({NASTY!a} + 'x' * 5_000_000)")
    status, out, error = command("audit", "k.py")
    assert (status, out) == (2, "")
    assert error.count("\n") == 1
    assert error[:-1].isprintable()
    assert len(error) < 1100


def test_a_message_stays_one_line_whoever_wrote_it():
    assert Outcome(verdict=Verdict.FAIL, message=f"a\n{ESCAPES}").message == r"a \x1b]0;title\x07"


def test_the_first_line_of_an_exception_is_the_first_that_has_words():
    assert (
        said(RuntimeError("\n  cannot compile\nsee the log"), first_line=True)
        == "RuntimeError: cannot compile"
    )
    assert said(RuntimeError("\n"), first_line=True) == "RuntimeError:"
