"""Measure fuzzing: cases a second of this machine's own workers, and of a scheduler with as many beside it.

    python benchmarks/fuzzing.py --out fuzzing.jsonl [--workers 2] [--rounds 2] [--budget standard]
    python benchmarks/fuzzing.py --table fuzzing.jsonl

Both run the same campaign: a seed and a budget in cases give the same cases. Rounds alternate between them,
so that what else the machine does meets both. Seconds are of the clock, from when the command has its workers
to the end of the campaign; the start of the workers' own processes, on their first batch, is in them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from local_cluster import LocalCluster  # noqa: E402

KERNEL = ROOT / "kernels" / "rms_norm_triton.py"
CHECKS = ("forward_error", "gradient")
LOCAL, CLUSTER = "local", "scheduler"


class Silent:
    """Is told of a campaign and says nothing."""

    def say(self, text: str) -> None:
        """Be told something."""

    def tell(self, finding: Any) -> None:
        """Be told of a finding."""

    def show(self, status: Any) -> None:
        """Be told how far it is."""


def run(arguments: argparse.Namespace) -> None:
    """Run the campaign both ways in each round; a line each."""
    with arguments.out.open("a", encoding="utf-8") as out:
        for number in range(arguments.rounds):
            for where in (LOCAL, CLUSTER) if number % 2 == 0 else (CLUSTER, LOCAL):
                with tempfile.TemporaryDirectory() as folder:
                    measure = _on_a_cluster if where == CLUSTER else _here
                    told = measure(arguments, Path(folder))
                about = {"where": where, "round": number, "workers": arguments.workers}
                out.write(json.dumps({**about, "budget": arguments.budget, **told}) + "\n")
                out.flush()


def _here(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from verifier.audit.fuzzing.workers import LocalWorkers

    jobs, backends = _jobs()
    return _timed(arguments, jobs, LocalWorkers(arguments.workers, lambda _: None, backends), folder)


def _on_a_cluster(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from verifier.audit.fuzzing.distributed_workers import ClusterWorkers

    jobs, backends = _jobs()
    cluster = LocalCluster(folder)
    try:
        cluster.scheduler()
        for number in range(arguments.workers):
            cluster.worker(f"worker-{number}")
        cluster.wait_for(arguments.workers)
        return _timed(arguments, jobs, ClusterWorkers(cluster.address, backends=backends), folder)
    finally:
        cluster.close()


def _jobs() -> tuple[list[Any], list[str]]:
    from verifier.audit.run_audit import select

    jobs = select([KERNEL], dtypes=["float32"], check_names=CHECKS)
    return jobs, sorted({job.backend for job in jobs if job.backend})


def _timed(arguments: argparse.Namespace, jobs: list[Any], workers: Any, folder: Path) -> dict[str, Any]:
    from verifier.audit.fuzzing.campaign import Wishes, fuzz

    lanes = max(1, -(-arguments.workers // len(jobs)))
    wishes = Wishes(
        budget=arguments.budget, out=folder / "out", findings=folder / "findings", seed=0, lanes=lanes
    )
    began = time.monotonic()
    report = fuzz(jobs, wishes, open_workers=lambda _: workers, watcher=Silent())
    seconds = time.monotonic() - began
    cases = sum(sum(line.counts.values()) for line in report.lines)
    if report.errors or report.findings:
        raise SystemExit("\n".join(report.errors) or "a right kernel has findings")
    return {"cases": cases, "seconds": round(seconds, 2)}


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown, a row a run, and the ratio of both rates over all rounds."""
    yield "| run on | workers | cases | s | cases a second |"
    yield "|---|---|---|---|---|"
    for one in records:
        rate = one["cases"] / one["seconds"]
        yield f"| {one['where']} | {one['workers']} | {one['cases']} | {one['seconds']:.0f} | {rate:.2f} |"
    counts = {one["cases"] for one in records}
    if len(counts) > 1:
        raise SystemExit(f"the runs did not run the same cases: {sorted(counts)}")
    local, cluster = (_rate(records, where) for where in (LOCAL, CLUSTER))
    yield ""
    ratio = f"{cluster / local:.2f} of it"
    yield f"Through the scheduler {cluster:.2f} cases a second, without it {local:.2f}: {ratio}."


def _rate(records: Sequence[dict[str, Any]], where: str) -> float:
    own = [one for one in records if one["where"] == where]
    return float(sum(one["cases"] for one in own)) / sum(one["seconds"] for one in own)


def main() -> None:
    """Measure, or print the table of what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    todo = parser.add_mutually_exclusive_group(required=True)
    todo.add_argument("--out", type=Path, help="file to which a line of JSON is added for each run")
    todo.add_argument("--table", type=Path, help="such a file, of which a table is printed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--budget", default="standard", help="smoke, quick, standard or deep: cases of each check"
    )
    arguments = parser.parse_args()
    if arguments.out:
        run(arguments)
        return
    for line in table([json.loads(line) for line in arguments.table.open(encoding="utf-8")]):
        print(line)


if __name__ == "__main__":
    main()
