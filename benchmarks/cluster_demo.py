"""Fuzz a kernel on a scheduler and workers of this machine; show who did what, and that nothing was lost.

    python benchmarks/cluster_demo.py --backend cuda --workers 2  # with two GPUs: both are used
    python benchmarks/cluster_demo.py --workers 4 --disturb       # a worker and the scheduler are killed
    python benchmarks/cluster_demo.py --workers 2 --pretend 2     # two devices that there are not

The same campaign runs before in one process here; its lines, counts and findings must be the same. Each batch
must stand in the journal once. Status 0 if all that is checked holds, else 1 with what does not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from local_cluster import LocalCluster, Watched  # noqa: E402

from verifier.audit.fuzzing import campaign  # noqa: E402
from verifier.audit.fuzzing.campaign import Headway, Wishes, fuzz  # noqa: E402
from verifier.audit.fuzzing.distributed_workers import ClusterWorkers  # noqa: E402
from verifier.audit.fuzzing.workers import LocalWorkers, Workers  # noqa: E402
from verifier.audit.record import Report  # noqa: E402
from verifier.audit.request import BUDGETS  # noqa: E402
from verifier.audit.run_audit import Job, select  # noqa: E402

KERNEL = ROOT / "kernels" / "rms_norm_triton.py"
CHECKS = ("forward_error", "gradient", "layouts")
DTYPES = ("float16", "float32")
UNIT_CASES = 8
"""Of a batch here: fewer than usual, so that there are many batches."""
LEAST_MEMORY = 64 << 20
"""Bytes by which the use of a GPU's memory grows where kernels run on it: a context alone takes more."""


@dataclass
class Watcher:
    """Says what a campaign says; kills a worker and the scheduler on the way, where that is asked for."""

    name: str
    cluster: LocalCluster | None = None
    disturb: bool = False
    batches: int = 0
    killed: list[str] = field(default_factory=list)
    last: Headway | None = None

    def say(self, text: str) -> None:
        """Say something in words."""
        print(f"[{self.name}] {text}", flush=True)

    def tell(self, finding: Any) -> None:
        """Say that there is a finding."""
        self.say(f"finding: {finding.subject} {finding.check} {finding.dtype}: {finding.outcome.message}")

    def show(self, status: Headway) -> None:
        """Disturb where it is time to."""
        self.last = status
        if self.cluster is None or not self.disturb:
            return
        done = status.cases / UNIT_CASES
        if not self.killed and done >= self.batches / 4:
            self._kill("worker-0")
        elif len(self.killed) == 1 and done >= self.batches / 2:
            self._kill("scheduler")
            self.cluster.scheduler("scheduler-again")
            for name in [n for n in self.cluster.started if n.startswith("worker-")]:
                self.cluster.worker(f"{name}-again")

    def _kill(self, name: str) -> None:
        assert self.cluster is not None
        self.cluster.kill(name)
        self.killed.append(name)
        self.say(f"killed {name} with -9")


def jobs_of(asked: argparse.Namespace) -> list[Job]:
    """Return what is fuzzed."""
    return select([asked.kernel], dtypes=DTYPES, check_names=CHECKS, backend_name=asked.backend or None)


def wishes(asked: argparse.Namespace, lanes: int, out: Path) -> Wishes:
    """Return what is asked of a campaign, all of which lies in a folder."""
    return Wishes(budget=asked.budget, out=out, findings=out / "findings", seed=0, lanes=lanes)


def counted(report: Report) -> list[Any]:
    """Return what lines say, but for how long they took."""
    return [
        (
            line.subject,
            line.check,
            line.dtype,
            sorted((str(verdict), count) for verdict, count in line.counts.items()),
            sorted((name, worst.utilisation, worst.index) for name, worst in line.outputs.items()),
            sorted(f.outcome.message for f in line.findings),
        )
        for line in report.lines
    ]


def places(out: Path) -> Counter[tuple[int, ...]]:
    """Return how often each batch stands in the journal."""
    lines = (out / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    return Counter(tuple(json.loads(line)["place"]) for line in lines)


class Memory:
    """By how much the use of each GPU's memory grew, whoever uses it; looked at four times a second."""

    def __init__(self) -> None:
        """Take what is used now for nothing."""
        import torch

        self._torch, self.grown = torch, {}
        self._before = {n: self._used(n) for n in range(torch.cuda.device_count())}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _used(self, number: int) -> int:
        free, whole = self._torch.cuda.mem_get_info(number)
        return int(whole - free)

    def _look(self) -> None:
        while not self._ends.wait(0.25):
            for number, before in self._before.items():
                self.grown[number] = max(self.grown.get(number, 0), self._used(number) - before)

    def close(self) -> None:
        """Look no more."""
        self._ends.set()
        self._thread.join()


def problems(
    asked: argparse.Namespace, batches: Sequence[dict[str, Any]], grown: dict[int, int]
) -> Iterator[str]:
    """Yield what does not hold of where batches ran."""
    wanted = asked.pretend or (asked.workers if asked.backend == "cuda" else 0)
    if asked.backend == "cuda" and len(grown) < wanted:
        yield f"there should be a GPU for each of {wanted} workers; there are {len(grown)}"
    devices = {(one["visible"], one["device"]) for one in batches}
    if wanted and len({visible for visible, _ in devices}) != wanted:
        yield f"{wanted} devices should have been used; used were {sorted(devices)}"
    if asked.backend == "cuda":
        if len({device for _, device in devices}) != wanted or any(
            not d.startswith("1 ") for _, d in devices
        ):
            yield f"each worker's kernels should see one GPU of their own; seen were {sorted(devices)}"
        used = [number for number, size in grown.items() if size >= LEAST_MEMORY]
        if len(used) < wanted:
            yield f"the memory of {wanted} GPUs should have grown; it grew by {grown} bytes"
    by_worker = {(one["worker"], one["process"]): one["visible"] for one in batches}
    if wanted and not asked.disturb and len(set(by_worker.values())) != len(by_worker):
        yield f"two workers shared a device: {by_worker}"
    if len({one["worker"] for one in batches}) < asked.workers:
        yield f"some workers did nothing: {sorted({one['worker'] for one in batches})}"


def main() -> int:
    """Run the campaign here and on the cluster; print who did what; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernel", type=Path, default=KERNEL)
    parser.add_argument("--backend", default="", help="such as cuda; by default that of audits here")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--budget", choices=sorted(BUDGETS), default="quick")
    parser.add_argument("--disturb", action="store_true", help="kill a worker, then the scheduler, with -9")
    parser.add_argument("--pretend", type=int, default=0, help="name so many devices that there are not")
    asked = parser.parse_args()
    campaign.UNIT_CASES = UNIT_CASES
    jobs = jobs_of(asked)
    lanes = max(1, -(-asked.workers // len(jobs)))
    generations = -(-BUDGETS[asked.budget] // (UNIT_CASES * lanes))
    expected = {(j, g, n) for j in range(len(jobs)) for g in range(generations) for n in range(lanes)}
    print(f"{len(jobs)} jobs, {len(expected)} batches, {asked.workers} workers", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        return _shown(asked, jobs, lanes, expected, Path(folder))


def _shown(
    asked: argparse.Namespace, jobs: list[Job], lanes: int, expected: set[tuple[int, ...]], folder: Path
) -> int:
    wrong: list[str] = []
    begun = time.monotonic()
    alone = LocalWorkers(1, lambda _: None, sorted({job.backend for job in jobs if job.backend}))
    here = fuzz(
        jobs,
        wishes(asked, lanes, folder / "here"),
        open_workers=lambda _: alone,
        watcher=Watcher("one process"),
    )
    print(f"[one process] {time.monotonic() - begun:.0f} s", flush=True)
    memory = Memory() if asked.backend == "cuda" else None
    cluster, log = LocalCluster(folder), folder / "batches.jsonl"
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(f"device-{n}" for n in range(asked.pretend))}
    begun = time.monotonic()
    try:
        cluster.scheduler()
        for number in range(asked.workers):
            cluster.worker(f"worker-{number}", **(visible if asked.pretend else {}))
        cluster.wait_for(asked.workers)
        watcher = Watcher("cluster", cluster, asked.disturb, len(expected))
        workers: Workers = ClusterWorkers(
            cluster.address, backends=sorted({j.backend for j in jobs if j.backend}), say=watcher.say
        )
        seen = Watched(workers, log, claims=bool(asked.pretend))
        spread = fuzz(
            jobs,
            wishes(asked, lanes, folder / "cluster"),
            open_workers=lambda _: seen,
            watcher=watcher,
        )
        print(f"[cluster] {time.monotonic() - begun:.0f} s", flush=True)
    except BaseException:
        for file in sorted(folder.glob("*.log")):
            print(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}", flush=True)
        raise
    finally:
        cluster.close()
        if memory is not None:
            memory.close()
    batches = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    by_worker: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for one in batches:
        by_worker.setdefault((one["worker"], one["process"], one["visible"], one["device"]), []).append(one)
    for (worker, process, device, gpu), own in sorted(by_worker.items()):
        cases, seconds = sum(one["cases"] for one in own), sum(one["seconds"] for one in own)
        where = f"device {device or 'none'}" + (f" (kernels see {gpu})" if gpu else "")
        print(f"{worker} (process {process}): {where}: {len(own)} batches, {cases} cases, {seconds:.0f} s")
    grown = memory.grown if memory is not None else {}
    for number, size in sorted(grown.items()):
        print(f"cuda:{number}: memory in use grew by up to {size >> 20} MiB")
    ran = Counter(tuple(one["place"]) for one in batches)
    for name, found in (("one process", places(folder / "here")), ("cluster", places(folder / "cluster"))):
        twice = [place for place, times in found.items() if times > 1]
        lost = sorted(expected - set(found))
        print(f"journal of {name}: {len(found)} of {len(expected)} batches, {len(twice)} of them twice")
        wrong += [f"{name}: lost {lost}"] if lost else []
        wrong += [f"{name}: counted twice {twice}"] if twice else []
        wrong += [f"{name}: not asked for {set(found) - expected}"] if set(found) - expected else []
    again = sum(times - 1 for times in ran.values())
    print(f"batches that ran again, of which one counts: {again}")
    if again and not asked.disturb:
        wrong.append(f"{again} batches ran twice although nothing died")
    if asked.disturb and watcher.killed != ["worker-0", "scheduler"]:
        wrong.append(f"killed were only {watcher.killed}")
    if counted(here) != counted(spread):
        wrong.append(f"the cluster counted otherwise:\n  {counted(here)}\n  {counted(spread)}")
    wrong += problems(asked, batches, grown)
    for text in wrong:
        print(f"WRONG: {text}")
    cases = sum(sum(line.counts.values()) for line in spread.lines)
    print(
        "nothing was lost, nothing was counted twice; the same as in one process" if not wrong else "FAILED"
    )
    print(f"{cases} cases judged, {len(spread.findings)} findings, {len(spread.errors)} errors")
    return 1 if wrong or spread.errors else 0


if __name__ == "__main__":
    sys.exit(main())
