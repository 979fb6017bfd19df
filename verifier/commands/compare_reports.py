"""Compares two reports of audits: what got worse from the first to the second, and what got better."""

from __future__ import annotations

from pathlib import Path

import typer

from verifier.audit.baseline import read_baseline, told, worse
from verifier.commands.outcome import say, write_json

WORSE_STATUS = 1


def are_reports(first: Path, second: Path) -> bool:
    """Return whether both files are reports by their names.

    Raises:
        ValueError: one is, and the other is not.

    """
    kinds = {path.suffix == ".json" for path in (first, second)}
    if len(kinds) > 1:
        raise ValueError(f"{first} and {second}: one is a report and the other a kernel: nothing to compare")
    return kinds == {True}


def compare_reports(first: Path, second: Path, json_file: Path | None) -> None:
    """Say where the second report is worse, then where it is better; status 1 where it is worse.

    Raises:
        BaselineError: a file is no report, or the two are of other cases.

    """
    old, new = read_baseline(first), read_baseline(second)
    lost, gained = worse(old, new), worse(new, old)
    for line in told(lost) if lost else [f"{second} is nowhere worse than {first}"]:
        say(line)
    if gained:
        places = f"{len(gained)} place{'s' if len(gained) != 1 else ''}"
        say(f"better in {places}, read from the second back to the first:")
        for one in gained:
            say(f"  {one.text}")
    sentences = {"worse": [one.text for one in lost], "better": [one.text for one in gained]}
    if json_file is not None and (why := write_json(json_file, sentences)):
        raise ValueError(f"could not be written: {why}")
    if lost:
        raise typer.Exit(WORSE_STATUS)
