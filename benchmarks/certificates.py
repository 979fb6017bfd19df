"""Certifies every corrected kernel at shapes and dtypes, and tells which are refused and why.

    python benchmarks/certificates.py [--part NAME] [--columns 33,1000] [--dtypes float32] [--gradients yes]
    python benchmarks/certificates.py --table > benchmarks/results/certificates.md

Each result is appended to a file of lines of JSON as soon as it is known (`--found`); what is there of the
same kernel files is not made again, so that a run can be cut off and continued. Published kernels, which have
known defects, and torch's own, which have no compiled code here, are left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import torch
import triton

from verifier.checks.support.certify import certified
from verifier.commands.explain import case_for
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.certificate import Refusal
from verifier.records.subject import Subject
from verifier.subjects.load_file import builtin_files, load_subjects

COLUMNS = (1, 33, 128, 1000, 1024, 4097, 16384)
DTYPES = ("float32", "float16", "bfloat16")
ROWS = 2
FOUND = Path("build/certificates.jsonl")
Key = tuple[str, str, int, bool]


def main() -> int:
    """Certify what is asked for and not yet known, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", default="", help="part of the name of the kernels")
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--gradients", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--found", type=Path, default=FOUND)
    parser.add_argument("--again", action="store_true", help="make again what is known")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    known = {} if asked.again else read(asked.found)
    if asked.table:
        print("\n".join(table(known)))
        return 0
    asked.found.parent.mkdir(parents=True, exist_ok=True)
    ways = {"no": (False,), "yes": (True,), "both": (False, True)}[asked.gradients]
    columns = list(map(int, asked.columns.split(",")))
    for one in surveyed(asked.part, columns, asked.dtypes.split(","), ways, known):
        with asked.found.open("a") as file:
            file.write(json.dumps(one) + "\n")
        print(*one.values(), flush=True)
    return 0


def corrected() -> list[Path]:
    """Return the files of corrected kernels that are compiled."""
    return [f for f in builtin_files() if "published" not in f.stem and not f.stem.endswith("_torch")]


def read(file: Path) -> dict[Key, dict[str, object]]:
    """Return what is known, the latest of each."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return {(one["kernel"], one["dtype"], one["columns"], one["gradients"]): one for one in found}


def surveyed(
    part: str,
    columns: list[int],
    dtypes: list[str],
    ways: tuple[bool, ...],
    known: dict[Key, dict[str, object]],
) -> Iterator[dict[str, object]]:
    """Yield what certifying gives, kernel by kernel; `seconds` is processor time, of the children too."""
    for path in corrected():
        if part not in path.stem:
            continue
        digest = sha256(path.read_bytes()).hexdigest()[:12]
        with Runner("machine") as runner:
            for subject in load_subjects(path):
                for count in columns:
                    for dtype in dtypes:
                        for gradients in ways if has_gradients(subject) else (False,):
                            one = known.get((subject.name, dtype, count, gradients), {})
                            if dtype not in subject.dtypes or one.get("source") == digest:
                                continue
                            yield one_of(subject, dtype, count, gradients, digest, runner)


def has_gradients(subject: Subject) -> bool:
    """Return whether a subject has a backward pass to certify."""
    return subject.differentiable and bool(op(subject.op).differentiable)


def one_of(  # noqa: PLR0917
    subject: Subject, dtype: str, count: int, gradients: bool, digest: str, runner: Runner
) -> dict[str, object]:
    """Return what certifying a subject gives."""
    before, case = spent(), case_for(subject, dtype, ROWS, count, 0.0, 0)
    found = certified(subject, case, runner=runner, gradients=gradients)
    return {
        "kernel": subject.name,
        "dtype": dtype,
        "columns": count,
        "gradients": gradients,
        "source": digest,
        "seconds": round(spent() - before, 1),
        "refused": f"{found.stage}: {found.why}" if isinstance(found, Refusal) else "",
        "claims": "" if isinstance(found, Refusal) else max((one.claims for one in found.proofs), key=len),
    }


def spent() -> float:
    """Return processor seconds of this process and of the children that ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def table(known: dict[Key, dict[str, object]]) -> Iterator[str]:
    """Yield a Markdown page: for each kernel and dtype at which columns, and what was refused."""
    yield "# Which kernels are certified, where, and what is refused\n"
    yield (
        f"Made by `python benchmarks/certificates.py`, {ROWS} rows, torch {torch.__version__}, "
        f"Triton {triton.__version__}."
    )
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


if __name__ == "__main__":
    sys.exit(main())
