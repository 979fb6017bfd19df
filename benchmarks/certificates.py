"""Certifies every corrected kernel at shapes and dtypes, and tells which are refused and why.

    python benchmarks/certificates.py [--workers N] [--part NAME] [--columns 33,1000] [--dtypes float32]
        [--gradients yes] [--found FILE] [--limit SECONDS]
    python benchmarks/certificates.py --table > benchmarks/results/certificates.md

Without options it is the whole grid: each kernel at seven numbers of columns, in each dtype, forward and
with gradients. Each result is appended to a file of lines of JSON as soon as it is known (`--found`); what is
there of the same kernel files is not made again, so that a run can be cut off and continued. Wide rows come
first, since they take longest. Published kernels, which have known defects, and torch's own, which have no
compiled code here, are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import NamedTuple

from certificate_cells import ROWS, cell

from verifier.audit.worker_pool import Died, pooled
from verifier.ops import op
from verifier.records.subject import Subject
from verifier.subjects.load_file import builtin_files, load_subjects

COLUMNS = (1, 33, 128, 1000, 1024, 4097, 16384)
DTYPES = ("float32", "float16", "bfloat16")
FOUND = Path("build/certificates.jsonl")
Known = Mapping[str, object]


class Key(NamedTuple):
    """What one result is about."""

    kernel: str
    dtype: str
    columns: int
    gradients: bool


class Asked(NamedTuple):
    """A result to make: of which subject of which file, and the digest of the file."""

    key: Key
    path: Path
    source: str


def main() -> int:
    """Certify what is asked for and not yet known, or print the table; status 1 if the verifier failed."""
    asked = options()
    known = {} if asked.again else read(asked.found)
    if asked.table:
        print("\n".join(table(known)))
        return 0
    asked.found.parent.mkdir(parents=True, exist_ok=True)
    ways = {"no": (False,), "yes": (True,), "both": (False, True)}[asked.gradients]
    columns = list(map(int, asked.columns.split(",")))
    cells = list(missing(asked.part, columns, asked.dtypes.split(","), ways, known))
    print(f"{len(cells)} to make with {asked.workers} workers", flush=True)
    failed = 0
    with asked.found.open("a", encoding="utf-8") as file:
        if cut_off(asked.found):
            file.write("\n")
        for done, one in enumerate(made(cells, asked.workers, asked.limit), 1):
            file.write(json.dumps(one) + "\n")
            file.flush()
            failed += str(one["refused"]).startswith("error")
            which = "with gradients" if one["gradients"] else "forward"
            what = f"refused: {one['refused']}" if one["refused"] else f"certified {one['claims']}"
            named = f"{one['kernel']} {one['dtype']} {one['columns']} {which}"
            print(f"{done}/{len(cells)} {named} {one['seconds']} s {what}", flush=True)
    return 1 if failed else 0


def options() -> argparse.Namespace:
    """Return what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", default="", help="part of the name of the kernels")
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--gradients", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--found", type=Path, default=FOUND)
    parser.add_argument("--again", action="store_true", help="make again what is known")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes; wide rows with gradients take up to 6 GiB each"
    )
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds by the clock for one result")
    parser.add_argument("--table", action="store_true")
    return parser.parse_args()


def corrected() -> list[Path]:
    """Return the files of corrected kernels that are compiled."""
    return [f for f in builtin_files() if "published" not in f.stem and not f.stem.endswith("_torch")]


def read(file: Path) -> dict[Key, Known]:
    """Return what is known, the latest of each; a line that was cut off is none."""
    found: dict[Key, Known] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            one = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[Key(one["kernel"], one["dtype"], one["columns"], one["gradients"])] = one
    return found


def cut_off(file: Path) -> bool:
    """Return whether the last line has no end."""
    text = file.read_text(encoding="utf-8")
    return bool(text) and not text.endswith("\n")


def missing(
    part: str, columns: list[int], dtypes: list[str], ways: tuple[bool, ...], known: Mapping[Key, Known]
) -> Iterator[Asked]:
    """Yield what is not known of the files as they are, wide rows first; failures are asked for again."""
    subjects = [
        (path, sha256(b"".join(file.read_bytes() for file in sources(path))).hexdigest()[:12], subject)
        for path in corrected()
        if part in path.stem
        for subject in load_subjects(path)
    ]
    for count in sorted(columns, reverse=True):
        for path, source, subject in subjects:
            for dtype in (one for one in dtypes if one in subject.dtypes):
                for gradients in sorted(ways if has_gradients(subject) else {False}, reverse=True):
                    key = Key(subject.name, dtype, count, gradients)
                    one = known.get(key, {})
                    if one.get("source") != source or str(one["refused"]).startswith("error"):
                        yield Asked(key, path, source)


def made(cells: list[Asked], workers: int, limit: float) -> Iterator[dict[str, object]]:
    """Yield each result as it is known; what its worker died of is one, too."""
    tasks = ((number, (str(one.path), *one.key, limit)) for number, one in enumerate(cells))
    with closing(pooled(cell, tasks, workers, backends=("machine",))) as results:
        for number, result in results:
            one = cells[number]
            told = result
            if isinstance(result, Died):
                told = {"seconds": 0.0, "refused": f"error: {result.message}", "claims": ""}
            yield {**one.key._asdict(), "source": one.source, **told}


def sources(path: Path) -> list[Path]:
    """Return a kernel file and the files beside it that it names, and that these name."""
    beside = {file.name: file for file in path.parent.iterdir() if file.suffix in {".py", ".cu", ".cuh"}}
    found: list[Path] = []
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.append(file)
            text = file.read_text(encoding="utf-8")
            waiting += [other for name, other in beside.items() if name in text]
    return sorted(found)


def has_gradients(subject: Subject) -> bool:
    """Return whether a subject has a backward pass to certify."""
    return subject.differentiable and bool(op(subject.op).differentiable)


def table(known: Mapping[Key, Known]) -> Iterator[str]:
    """Yield a Markdown page: for each kernel and dtype at which columns, and what was refused."""
    places = sorted(
        {f"torch {one['torch']}, Triton {one['triton']}" for one in known.values() if "torch" in one}
    )
    yield "# Which kernels are certified, where, and what is refused\n"
    yield f"Made by `python benchmarks/certificates.py`, {ROWS} rows, {'; '.join(places)}."
    yield "A letter names the claims of the rules that a certificate needed; a number names a reason below."
    yield "An empty cell was not asked for.\n"
    columns = sorted({key[2] for key in known})
    reasons: dict[str, int] = {}
    rows: dict[tuple[str, str, bool], dict[int, str]] = defaultdict(dict)
    for (kernel, dtype, count, gradients), one in known.items():
        refused = str(one["refused"])
        number = reasons.setdefault(refused, len(reasons) + 1) if refused else 0
        rows[kernel, dtype, gradients][count] = f"refused ({number})" if refused else str(one["claims"])
    certified_count = sum(not one["refused"] for one in known.values())
    yield f"{certified_count} of {len(known)} certified.\n"
    yield f"| kernel | dtype | pass | {' | '.join(map(str, columns))} |"
    yield "|---|---|---|" + "---|" * len(columns)
    for (kernel, dtype, gradients), cells in sorted(rows.items()):
        which = "with gradients" if gradients else "forward"
        yield f"| {kernel} | {dtype} | {which} | " + " | ".join(cells.get(c, "") for c in columns) + " |"
    if reasons:
        yield "\nReasons:\n"
        for reason, number in reasons.items():
            yield f"{number}. {reason.replace('|', '&#124;')}"
    yield from costs(known)


def costs(known: Mapping[Key, Known]) -> Iterator[str]:
    """Yield what certificates cost: of each number of columns, the median and the largest."""
    took: dict[tuple[int, bool], list[float]] = defaultdict(list)
    for key, one in known.items():
        if not one["refused"] and isinstance(one.get("seconds"), int | float):
            took[key.columns, key.gradients].append(float(str(one["seconds"])))
    yield "\nProcessor seconds of a certificate, compilation included: the median of all, and the largest:\n"
    yield "| columns | forward | with gradients |"
    yield "|---|---|---|"
    for count in sorted({columns for columns, _ in took}):
        cells = [took[count, gradients] for gradients in (False, True)]
        told = [f"{median(one):.1f}, {max(one):.1f}" if one else "" for one in cells]
        yield f"| {count} | {' | '.join(told)} |"


if __name__ == "__main__":
    sys.exit(main())
