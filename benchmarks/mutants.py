"""Mutate the corrected kernels, and count what an audit and what usual tests find.

    python benchmarks/mutants.py --out mutants.jsonl --minutes 9 [--budget quick standard] [--sample 40]
        [--seed 0] [--also KERNEL:FILE:LINE ...] [--from earlier.jsonl ...] [--check NAME]
    python benchmarks/mutants.py --table mutants.jsonl [more.jsonl ...]

One line of JSON for each line of an audit that was put to a mutant: its place, what it is, what was found.
Usual tests compare results and gradients with the op in functions of torch (`usual_references`), on N(0, 1)
data in contiguous memory of natural shapes, with three habits of tolerance. They run on the machine as the
audit does, where a stray access is an error; on a GPU they would see less. The mutants of all kernels are
taken in turn, and so are their lines (`mutant_lines`). With several budgets a mutant is first asked with the
second what killed it with the first. What the file holds already, or one that is named by --from, is not run
again: the same command goes on where it was ended. A mutant that is not killed has survived when all its
lines were asked; the table counts those that did not end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mutant_lines import USUAL, Asked, Progress, Schedule, judged
from reach import compiled_kernels
from usual_tests import HABITS

from verifier.audit.mutation.family import mutations
from verifier.audit.mutation.in_sources import used
from verifier.audit.mutation.kills import Fate, Kill, Question, lines_in_order
from verifier.audit.mutation.mutants import Ending, Mutants
from verifier.audit.mutation.mutation import Mutation
from verifier.audit.request import BUDGETS
from verifier.audit.worker_pool import Died, pooled
from verifier.records.reach import SourcePlace
from verifier.subjects.load_file import load_subjects

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
DIGITS = 16
"""Of the digest of a piece of compiled code, as many as the file keeps."""
CORRECTED = tuple(stem for stem in compiled_kernels() if "_published_" not in stem)
"""Published kernels have known defects."""


GRACE_SECONDS = 25.0
"""For what was begun before the time was over; then it is given up."""

Told = tuple[Path, Mutation | None]


def _in_turn(arguments: argparse.Namespace) -> Iterator[Told]:
    """Yield the originals, mutants that were asked for by their place, then some of each kernel in turn."""
    paths = [KERNELS / f"{stem}.py" for stem in arguments.kernel or CORRECTED]
    every = {path: used(mutations(path), load_subjects(path)) for path in paths}
    yield from ((path, None) for path in paths)
    named = []
    for kernel, file, line in (text.split(":") for text in arguments.also):
        path = KERNELS / f"{kernel}.py"
        every.setdefault(path, used(mutations(path), load_subjects(path)))
        named += [(path, m) for m in every[path] if m.file.name == file and m.line == int(line)]
    yield from named
    chosen = []
    for path in paths:
        drawn = random.Random(f"{path.stem} {arguments.seed}")
        sample = drawn.sample(every[path], min(arguments.sample, len(every[path])))
        chosen.append([(path, mutation) for mutation in sample if (path, mutation) not in named])
    for together in itertools.zip_longest(*chosen):
        yield from (one for one in together if one is not None)


def run(arguments: argparse.Namespace) -> None:
    """Judge mutants until the time is over."""
    end = time.monotonic() + 60 * arguments.minutes
    told = list(_in_turn(arguments))
    schedule = _scheduled(told, arguments)
    asked: dict[int, tuple[int, str, Asked]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="norm-verifier-mutants-") as scratch,
        arguments.out.open("a", encoding="utf-8") as out,
        closing(
            pooled(
                judged,
                _tasks(schedule, told, asked, scratch, end),
                arguments.workers,
                backends=("machine",),
            )
        ) as results,
    ):
        for task, result in results:
            number, budget, line = asked.pop(task)
            progress = schedule.known[number, budget]
            words = {"number": number, **_asked(*told[number], budget, arguments), "asked": line}
            record = {**words, "of": len(progress.lines), **_found(result, progress)}
            progress.take(record)
            out.write(json.dumps(record) + "\n")
            out.flush()
            if time.monotonic() > end + GRACE_SECONDS:
                break


def _scheduled(told: Sequence[Told], arguments: argparse.Namespace) -> Schedule:
    """Return what is to be asked, with what files know of it."""
    kernels = {path: load_subjects(path) for path in dict.fromkeys(path for path, _ in told)}
    lines = {
        path: tuple((s.name, check, dtype) for s, check, dtype in lines_in_order(subjects, arguments.check))
        for path, subjects in kernels.items()
    }
    numbers = {
        (_key(_asked(path, mutation, budget, arguments)), budget): number
        for number, (path, mutation) in enumerate(told)
        for budget in arguments.budget
    }
    schedule = Schedule(
        budgets=arguments.budget,
        originals=[number for number, (_, mutation) in enumerate(told) if mutation is None],
        mutants=[number for number, (_, mutation) in enumerate(told) if mutation is not None],
        known={(n, budget): Progress(lines=lines[told[n][0]]) for (_, budget), n in numbers.items()},
    )
    for record in _records([file for file in (*arguments.earlier, arguments.out) if file.exists()]):
        number = numbers.get((_key(record), record["budget"]))
        if number is not None and "asked" in record:
            schedule.known[number, record["budget"]].take(record)
            if tuple(record["asked"]) == USUAL:
                schedule.usual.add(number)
    return schedule


def _tasks(
    schedule: Schedule,
    told: Sequence[Told],
    asked: dict[int, tuple[int, str, Asked]],
    scratch: str,
    end: float,
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield tasks for the workers until the time is over, and note what each of them asks."""
    for task, (number, budget, line) in enumerate(schedule.tasks()):
        if time.monotonic() > end:
            return
        asked[task] = number, budget, line
        path, mutation = told[number]
        yield task, (str(path), mutation, Question(cases=BUDGETS[budget], seed=0), line, scratch)


def _asked(
    path: Path, mutation: Mutation | None, budget: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return which mutant is asked about, and how, as the file keeps it."""
    place = {} if mutation is None else {**asdict(mutation), "file": mutation.file.name}
    drawn = {"sample": arguments.sample, "seed": arguments.seed}
    return {"kernel": path.stem, "budget": budget, **drawn, "mutation": place}


def _key(record: dict[str, Any]) -> tuple[object, ...]:
    """Return what tells a mutant of one budget from all others of the file."""
    place = record["mutation"]
    told = tuple(place.get(name) for name in ("file", "start", "end", "after"))
    return (record["kernel"], record["budget"], *told)


def _records(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(text) for file in files for text in file.read_text(encoding="utf-8").splitlines()]


def _found(result: Any, progress: Progress) -> dict[str, Any]:
    """Return what was found of a mutant, as the file keeps it: of code and lines what is new."""
    if isinstance(result, Died):
        return {"errors": [f"a worker process died: {result.message}"]}
    one, usual = result
    return {
        "kills": [asdict(kill) for kill in one.kills],
        "errors": list(one.errors),
        "seconds": round(one.seconds, 2),
        "code": sorted({digest[:DIGITS] for digest in one.code} - progress.code),
        "ran": one.ran,
        "lines": sorted(set(map(tuple, one.lines)) - progress.places),
        "usual": list(usual),
    }


def joined(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one record of a mutant made of those of its lines.

    ended: whether it is known to be killed or to survive. usual: None where no usual test was made.
    """
    first, lines = records[0], [r for r in records if tuple(r.get("asked", ())) != USUAL]
    every = {
        name: [x for r in lines for x in r.get(name, ())] for name in ("kills", "errors", "code", "lines")
    }
    ran = [r["ran"] for r in lines if r.get("ran") is not None]
    usual = [r["usual"] for r in records if "usual" in r and tuple(r.get("asked", USUAL)) == USUAL]
    whole = any("asked" not in r for r in lines)
    asked = {tuple(r["asked"]) for r in lines if "asked" in r}
    of = max((r.get("of", 0) for r in lines), default=0)
    return {
        **{name: first[name] for name in ("number", "kernel", "budget", "sample", "seed", "mutation")},
        **every,
        "seconds": sum(r.get("seconds", 0.0) for r in lines),
        "ran": any(ran) if ran else None,
        "usual": usual[0] if usual else None,
        "ended": whole or bool(every["kills"]) or len(asked) >= of > 0,
        "asked": f"{len(asked)} of {of}",
    }


def _mutants_of(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return one record for each mutant and budget of files."""
    together: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for record in _records(files):
        together.setdefault(_key(record), []).append(record)
    return [joined(records) for records in together.values()]


def fate_of(record: dict[str, Any]) -> Fate:
    """Read what the file keeps of the fate of a mutant, or of an original."""
    place = record["mutation"]
    refusal = place.get("refusal")
    changed = {**place, "file": Path(place["file"]), "refusal": refusal and tuple(refusal)} if place else None
    return Fate(
        mutation=Mutation(**changed) if changed else None,
        kills=tuple(Kill(**kill) for kill in record.get("kills", ())),
        seconds=record.get("seconds", 0.0),
        code=frozenset(record.get("code", ())),
        errors=tuple(record["errors"]),
        ran=record.get("ran"),
        lines=frozenset(SourcePlace(*place) for place in record.get("lines", ())),
    )


def ending(record: dict[str, Any], originals: dict[tuple[str, str], dict[str, Any]]) -> Ending:
    """Say how a mutant of the file ended, as `norm-verifier mutate` does."""
    original = originals.get((record["kernel"], record["budget"]))
    nothing = Fate(mutation=None)
    every = Mutants(path=Path(record["kernel"]), original=fate_of(original) if original else nothing)
    return every.ending(fate_of(record))


def table(files: Sequence[Path]) -> None:
    """Print shares of killed mutants by kernel, and the survivors."""
    records = _mutants_of(files)
    originals = {(r["kernel"], r["budget"]): r for r in records if not r["mutation"]}
    for (kernel, budget), record in sorted(originals.items()):
        if record["kills"] or record["usual"] or record["errors"]:
            shown = {name: record[name] for name in ("kills", "usual", "errors")}
            print(f"the original {kernel} ({budget}): {shown}")
        if not record["ended"]:
            print(f"the original {kernel} ({budget}): only {record['asked']} lines were asked")
    mutants = [r for r in records if r["mutation"]]
    every = sorted({(r["kernel"], r["budget"]) for r in mutants}) + [("all", b) for b in BUDGETS]
    head = ["kernel", "budget", "mutants", *Ending, "not ended", "audit", *HABITS]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for kernel, budget in every:
        these = [r for r in mutants if kernel in {r["kernel"], "all"} and r["budget"] == budget]
        ends = [ending(r, originals) for r in these if r["ended"]]
        judged = [r for r in these if r["ended"] and ending(r, originals) in {Ending.KILLED, Ending.SURVIVED}]
        if not these:
            continue
        counts = [len(these), *(ends.count(word) for word in Ending), len(these) - len(ends)]
        shares = [_share(bool(r["kills"]) for r in judged)]
        tested = [r["usual"] for r in judged if r["usual"] is not None]
        shares += [_share(habit in usual for usual in tested) for habit in HABITS]
        print("| " + " | ".join([kernel, budget, *map(str, counts), *shares]) + " |")
    for told, numbers in _numbers(records).items():
        if missing := sorted({*range(max(numbers))} - numbers):
            print(f"{told}: {len(missing)} begun and not ended, run again to end them: {missing}")
    for record in mutants:
        end = ending(record, originals)
        if end not in {Ending.SURVIVED, Ending.OPEN} and record["ended"]:
            continue
        place = record["mutation"]
        where = f"{place['file']}:{place['line']} {place['kind']} in {place['within']}"
        change = f"{place['before']!r} -> {place['after']!r}"
        usual = "not asked" if record["usual"] is None else ", ".join(record["usual"]) or "nothing"
        asked = "" if record["ended"] else f" after {record['asked']} lines"
        print(
            f"{record['budget']}, {end}{asked}: {record['kernel']}, {where}: {change}; "
            f"usual tests: {usual} {record['errors'][:1] or ''}"
        )


def _share(of: Iterable[bool]) -> str:
    every = list(of)
    return f"{100 * sum(every) / len(every):.1f} %" if every else "-"


def _numbers(records: Sequence[dict[str, Any]]) -> dict[str, set[int]]:
    """Return the numbers of the mutants of which something is known, by the words of their run."""
    found: dict[str, set[int]] = {}
    for record in records:
        words = f"{record['budget']}, sample {record['sample']}, seed {record['seed']}"
        found.setdefault(words, set()).add(record["number"])
    return found


def main() -> None:
    """Run, or print the table of earlier runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--budget", default=["quick"], choices=sorted(BUDGETS), nargs="+")
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kernel", action="append")
    parser.add_argument("--check", action="append", default=[])
    parser.add_argument("--also", default=[], nargs="+")
    parser.add_argument("--from", dest="earlier", type=Path, default=[], nargs="+")
    parser.add_argument("--table", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
    else:
        run(arguments)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
