"""Audit the built-in kernels, and list which of their functions and loops ran, and what did not and why.

    python benchmarks/reach.py --out reach.jsonl [--budget quick] [--dtype float32] [--kernel NAME ...]
        [--check NAME ...] [--jobs 1]
    python benchmarks/reach.py --table reach.jsonl [more.jsonl ...]

As many audits at once as there are jobs, each in a process of its own; one line of JSON a subject: what its
report says of its reach, and the seconds that the audit took by the clock and of processor time. With some
checks alone it is what these reach: all checks reach no less. Kernels that are torch's own have neither
functions nor loops and are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("subject", "functions", "loops", "wrapper_lines", "blocks", "turns", "lacking", "left_out", "unswept")


class AuditError(Exception):
    """An audit that wrote no report."""


def compiled_kernels() -> list[str]:
    """Return the stems of the kernel files with kernels of their own."""
    every = sorted(path.stem for path in (ROOT / "kernels").glob("*_*.py"))
    return [stem for stem in every if stem.endswith(("_cuda", "_triton")) and "_skeleton_" not in stem]


def run(arguments: argparse.Namespace) -> None:
    """Audit the kernels; a line for each of their subjects, as its audit ends."""
    failed: list[str] = []
    with arguments.out.open("a", encoding="utf-8") as out, ThreadPoolExecutor(arguments.jobs) as pool:
        stems = arguments.kernel or compiled_kernels()
        for audited in as_completed([pool.submit(_audited, stem, arguments) for stem in stems]):
            try:
                records = audited.result()
            except AuditError as error:
                failed.append(str(error))
                continue
            for record in records:
                out.write(json.dumps(record) + "\n")
                out.flush()
    if failed:
        raise SystemExit("\n".join(failed))


def _audited(stem: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "verifier", "audit", str(ROOT / "kernels" / f"{stem}.py"), "--quiet"]
        command += ["--dtype", arguments.dtype, "--budget", arguments.budget, "--workers", "1"]
        command += [word for name in arguments.check for word in ("--check", name)]
        command += ["--json", str(report), "--findings", str(Path(folder) / "findings")]
        began = time.monotonic()
        with (Path(folder) / "said").open("w+", encoding="utf-8") as said:
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=said)
            _, ended, used = os.wait4(process.pid, 0)  # of this one alone, while others run
            process.returncode = status = os.waitstatus_to_exitcode(ended)
            said.seek(0)
            if not report.exists():
                raise AuditError(f"{stem}: the audit ended with status {status}: {said.read().strip()}")
        found = json.loads(report.read_text(encoding="utf-8"))["reach"]
    took = {"seconds": round(time.monotonic() - began, 1)}
    took["processor_seconds"] = round(used.ru_utime + used.ru_stime, 1)
    asked = {"kernel": stem, "budget": arguments.budget, "dtype": arguments.dtype, "status": status}
    asked |= {"checks": arguments.check}
    return [{**asked, **took, **{key: one[key] for key in KEPT}} for one in found]


def table(files: Sequence[Path]) -> None:
    """Print what ran of each subject, by budget, then what did not and why."""
    records = [json.loads(text) for file in files for text in file.read_text(encoding="utf-8").splitlines()]
    print("| subject | budget | functions | loops more than once | reach | wrapper lines | processor s |")
    print("|" + "---|" * 7)
    for budget in dict.fromkeys(record["budget"] for record in records):
        these = [record for record in records if record["budget"] == budget]
        for record in these:
            print(_row(f"`{record['subject']}`", budget, [record]))
        print(_row("all", budget, these))
    for record in records:
        for part in record["lacking"]:
            if part["kind"] != "line":
                where = f"`{part['function']}` ({part['file']}:{part['line']})"
                print(f"- {record['subject']}, {record['budget']}: {part['kind']} {where}: {part['why']}")


def _row(name: str, budget: str, records: Sequence[dict[str, Any]]) -> str:
    known = [record for record in records if record["functions"] is not None]
    counts = {what: _sum(known, what) for what in ("functions", "loops", "wrapper_lines")}
    ran, of = (sum(counts[what][side] for what in ("functions", "loops")) for side in (0, 1))
    cells = [name, budget, *("{}/{}".format(*counts[what]) for what in ("functions", "loops"))]
    cells += [f"{100 * ran / of:.1f} %" if of else "unknown", "{}/{}".format(*counts["wrapper_lines"])]
    return "| " + " | ".join([*cells, f"{sum(r['processor_seconds'] for r in records):.0f}"]) + " |"


def _sum(records: Sequence[dict[str, Any]], what: str) -> tuple[int, int]:
    pairs = [record[what] for record in records if record[what] is not None]
    return sum(pair["ran"] for pair in pairs), sum(pair["of"] for pair in pairs)


def main() -> None:
    """Run, or print the table of earlier runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("reach.jsonl"))
    parser.add_argument("--budget", default="quick")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kernel", action="append")
    parser.add_argument("--check", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
