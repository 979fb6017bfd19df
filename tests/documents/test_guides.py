"""What the guides say of declarations is all that there is to say, and their examples do what they show."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import typer

from strategies.layouts import KINDS
from verifier import Domain, subject
from verifier.arithmetic.trees import tree
from verifier.audit.rules import line_verdict
from verifier.audit.run_audit import audit, close_runners, select
from verifier.commands.command_line import app
from verifier.records.verdict import Verdict
from verifier.subjects.declare import known_guarantees

DOCS = Path(__file__).parents[2] / "docs"
DECLARE = (DOCS / "how-to" / "declare.md").read_text(encoding="utf-8")
AUDIT = (DOCS / "how-to" / "audit.md").read_text(encoding="utf-8")
VERDICTS = (DOCS / "explanation" / "verdicts.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "word",
    [
        *inspect.signature(subject).parameters,
        *known_guarantees(),
        *(field.name for field in dataclasses.fields(Domain)),
        *inspect.signature(tree.tree).parameters,
        *("tile", "sequential", "pairwise", "Trees", "KnownDefect"),
        *KINDS,
    ],
)
def test_the_guide_to_declarations_leaves_no_word_out(word):
    assert re.search(rf"\b{word}\b", DECLARE)


@pytest.mark.parametrize("word", [*Verdict, "(known)", "Doubtful", '"either"'])
def test_every_verdict_is_explained(word):
    assert word in VERDICTS


def test_the_guide_to_audits_has_every_option():
    options = [p for p in typer.main.get_command(app).commands["audit"].params if p.opts[0].startswith("-")]
    assert options
    assert [p.name for p in options if not any(re.search(rf"`{o}\b", AUDIT) for o in p.opts)] == []


def test_the_declarations_that_are_shown_pass(tmp_path):
    wanted = ["forward_error", "finite", "saved_statistics", "determinism"]
    of_sum = ["forward_error", "gradient", "partial_gradients", "layouts"]
    blocks = re.findall(r"```python\n(.*?)```", DECLARE, re.DOTALL)
    for block, names in zip(blocks, (wanted, of_sum), strict=True):
        file = tmp_path / f"of_{len(block)}.py"
        file.write_text(block)
        report = audit(select([file], check_names=names))
        close_runners()
        assert {(line.check, line_verdict(line)) for line in report.lines} == {
            (name, Verdict.PASS) for name in names
        }
