"""Mutate the corrected kernels, and count what an audit and what usual tests find.

    python benchmarks/mutants.py --out mutants.jsonl --minutes 9 [--budget quick] [--sample 40] [--seed 0]
    python benchmarks/mutants.py --table mutants.jsonl [more.jsonl ...]

One line of JSON a mutant: its place, what it is, what the audit found (the first finding), and which usual
tests found it. Usual tests compare outputs and gradients with torch's in the dtype of the kernel, on N(0, 1)
data in contiguous memory of natural shapes, with three habits of tolerance. They run on the machine as the
audit does, where a stray access is an error; on a GPU they would see less. The mutants of all kernels are
taken in turn, so that a run that is cut short has some of each. What the file holds already is not run again:
the same command goes on where it was ended. Survivors take longest, so those that were begun and did not end
must end before shares are read; the table counts them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from usual_tests import HABITS, judged

from verifier.audit.mutation.family import mutations
from verifier.audit.mutation.in_sources import used
from verifier.audit.mutation.kills import Fate, Kill, Question
from verifier.audit.mutation.mutants import Ending, Mutants
from verifier.audit.mutation.mutation import Mutation
from verifier.audit.request import BUDGETS
from verifier.audit.worker_pool import Died, pooled
from verifier.records.reach import SourcePlace
from verifier.subjects.load_file import load_subjects

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
CORRECTED = (
    "batch_norm_triton",
    "group_norm_triton",
    "layer_norm_backward_cuda",
    "layer_norm_single_block_triton",
    "layer_norm_textbook_cuda",
    "layer_norm_textbook_triton",
    "layer_norm_two_pass_cuda",
    "layer_norm_two_pass_triton",
    "layer_norm_welford_cuda",
    "layer_norm_welford_triton",
    "log_softmax_cuda",
    "log_softmax_online_triton",
    "log_softmax_triton",
    "rms_norm_triton",
    "softmax_cuda",
    "softmax_online_triton",
    "softmax_triton",
)


def _in_turn(paths: Sequence[Path], sample: int, seed: int) -> Iterator[tuple[Path, Mutation | None]]:
    """Yield the originals, then mutants of each kernel in turn."""
    chosen = []
    for path in paths:
        every = used(mutations(path), load_subjects(path))
        drawn = random.Random(f"{path.stem} {seed}").sample(every, min(sample, len(every)))
        chosen.append([(path, mutation) for mutation in drawn])
    yield from ((path, None) for path in paths)
    for together in itertools.zip_longest(*chosen):
        yield from (one for one in together if one is not None)


def run(arguments: argparse.Namespace) -> None:
    """Judge mutants until the time is over; a line each."""
    question = Question(cases=BUDGETS[arguments.budget], seed=0)
    paths = [KERNELS / f"{stem}.py" for stem in arguments.kernel or CORRECTED]
    told = list(_in_turn(paths, arguments.sample, arguments.seed))
    ended = {_key(record) for record in _records([arguments.out] if arguments.out.exists() else [])}
    end = time.monotonic() + 60 * arguments.minutes
    left = (
        (number, (str(path), mutation, question))
        for number, (path, mutation) in enumerate(told)
        if _key(_asked(path, mutation, arguments)) not in ended
    )
    tasks = itertools.takewhile(lambda _: time.monotonic() < end, left)
    with (
        arguments.out.open("a", encoding="utf-8") as out,
        closing(pooled(judged, tasks, arguments.workers, backends=("machine",))) as results,
    ):
        for number, result in results:
            path, mutation = told[number]
            record = {"number": number, **_asked(path, mutation, arguments), **_found(result)}
            out.write(json.dumps(record) + "\n")
            out.flush()


def _asked(path: Path, mutation: Mutation | None, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return which mutant is asked about, and how, as the file keeps it."""
    place = {} if mutation is None else {**asdict(mutation), "file": mutation.file.name}
    drawn = {"sample": arguments.sample, "seed": arguments.seed}
    return {"kernel": path.stem, "budget": arguments.budget, **drawn, "mutation": place}


def _key(record: dict[str, Any]) -> tuple[object, ...]:
    """Return what tells a mutant of one budget from all others of the file."""
    place = record["mutation"]
    told = tuple(place.get(name) for name in ("file", "start", "end", "after"))
    return (record["kernel"], record["budget"], *told)


def _records(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(text) for file in files for text in file.read_text(encoding="utf-8").splitlines()]


def _found(result: Any) -> dict[str, Any]:
    """Return what was found of a mutant, as the file keeps it."""
    if isinstance(result, Died):
        return {"errors": [f"a worker process died: {result.message}"]}
    one, usual = result
    return {
        "kills": [asdict(kill) for kill in one.kills],
        "errors": list(one.errors),
        "seconds": round(one.seconds, 2),
        "code": sorted(one.code),
        "ran": one.ran,
        "lines": sorted(one.lines),
        "usual": list(usual),
    }


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
    records = _records(files)
    originals = {(r["kernel"], r["budget"]): r for r in records if not r["mutation"]}
    for (kernel, budget), record in sorted(originals.items()):
        if record.get("kills") or record.get("usual") or record["errors"]:
            print(f"the original {kernel} ({budget}): {record}")
    mutants = [r for r in records if r["mutation"]]
    every = sorted({(r["kernel"], r["budget"]) for r in mutants}) + [("all", b) for b in BUDGETS]
    head = ["kernel", "budget", "mutants", *Ending, "audit", *HABITS]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for kernel, budget in every:
        these = [r for r in mutants if kernel in {r["kernel"], "all"} and r["budget"] == budget]
        ends = [ending(r, originals) for r in these]
        decided = [r for r, e in zip(these, ends, strict=True) if e in {Ending.KILLED, Ending.SURVIVED}]
        if not decided:
            continue
        shares = [len([r for r in decided if r["kills"]])] + [
            len([r for r in decided if habit in r["usual"]]) for habit in HABITS
        ]
        counts = [len(ends), *(ends.count(word) for word in Ending)]
        cells = [kernel, budget, *map(str, counts), *(f"{100 * s / len(decided):.1f} %" for s in shares)]
        print("| " + " | ".join(cells) + " |")
    for told, numbers in _numbers(records).items():
        if missing := sorted({*range(max(numbers))} - numbers):
            print(f"{told}: {len(missing)} begun and not ended, run again to end them: {missing}")
    for record in mutants:
        if (end := ending(record, originals)) in {Ending.SURVIVED, Ending.OPEN}:
            place = record["mutation"]
            where = f"{place['file']}:{place['line']} {place['kind']} in {place['within']}"
            change = f"{place['before']!r} -> {place['after']!r}"
            usual = ", ".join(record.get("usual", ())) or "nothing"
            print(f"{end}: {where}: {change}; usual tests: {usual} {record['errors'][:1] or ''}")


def _numbers(records: Sequence[dict[str, Any]]) -> dict[str, set[int]]:
    """Return the numbers of the mutants that ended, by the words of their run."""
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
    parser.add_argument("--budget", default="quick", choices=sorted(BUDGETS))
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kernel", action="append")
    parser.add_argument("--table", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
    else:
        run(arguments)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
