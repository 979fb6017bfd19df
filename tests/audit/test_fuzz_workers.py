"""Workers of one machine outlive each other; those of a cluster outlive their scheduler, and lose nothing."""

import contextlib
import os
from pathlib import Path

import pytest
import worker_tasks
from campaigns import campaign, counted
from dask_cluster import Cluster

from verifier.audit.fuzzing import campaign as campaigns
from verifier.audit.fuzzing.workers import LocalWorkers, WorkerDiedError
from verifier.audit.request import BUDGETS

SUPPORT = Path(__file__).parents[1] / "support"
KERNELS = """
@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def wrong_in_long_rows(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * (1.01 if input.shape[-1] > 200 else 1)
"""
LANES, CASES, GENERATIONS = 2, 4, 4


def test_a_worker_that_dies_is_replaced_and_what_kills_two_is_given_up(tmp_path):
    with contextlib.closing(LocalWorkers(1, lambda _: None)) as pool:
        first = pool.begin(worker_tasks.run, ("place", None))
        once = pool.begin(worker_tasks.run, ("die_once", str(tmp_path / "died")))
        second = pool.begin(worker_tasks.run, ("place", None))
        always = pool.begin(worker_tasks.run, ("die", None))
        third = pool.begin(worker_tasks.run, ("place", None))
        assert once.result(timeout=120) == "done"
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            always.result(timeout=120)
        places = {os.getpid(), *(task.result(timeout=120) for task in (first, second, third))}
    assert len(places) == 4


def test_tasks_are_done_side_by_side(tmp_path):
    with contextlib.closing(LocalWorkers(2, lambda _: None)) as pool:
        both = [pool.begin(worker_tasks.run, ("meet", (str(tmp_path), 2))) for _ in range(2)]
        assert len({task.result(timeout=120) for task in both}) == 2


@pytest.fixture
def cluster(tmp_path, warm_python):
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster", warm_python)
    yield made
    made.close()


def test_a_worker_killed_and_a_scheduler_restarted_change_nothing(
    cluster, no_child, kernel_file, tmp_path, monkeypatch
):
    from verifier.audit.fuzzing.distributed_workers import ClusterWorkers

    monkeypatch.setattr(campaigns, "UNIT_CASES", CASES)
    monkeypatch.setitem(BUDGETS, "quick", LANES * CASES * GENERATIONS)
    file = kernel_file(KERNELS)
    local, _ = campaign(file, tmp_path / "local", lanes=LANES)
    scheduler, first = cluster.scheduler(), cluster.worker()
    cluster.worker()
    done, said = [], []

    def disturb(status):
        if not done and status.cases >= CASES:
            done.append("a worker")
            cluster.kill(first)
        elif len(done) == 1 and status.cases >= 2 * LANES * CASES:
            done.append("the scheduler")
            cluster.kill(scheduler)
            cluster.scheduler()
            cluster.worker()

    spread, _ = campaign(
        file,
        tmp_path / "spread",
        lanes=LANES,
        stops=disturb,
        open_workers=lambda _: ClusterWorkers(cluster.address, say=said.append),
    )
    assert done == ["a worker", "the scheduler"]
    assert [text.split(" ")[-2:] for text in said if text.endswith("is back")]
    assert counted(spread) == counted(local)
    entries = (tmp_path / "spread" / "journal.jsonl").read_text().splitlines()
    assert len(entries) == 2 * LANES * GENERATIONS
    assert len(spread.findings) == 1


def test_no_scheduler_is_said(monkeypatch):
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    from verifier.audit.fuzzing import distributed_workers

    monkeypatch.setattr(distributed_workers, "CONNECT_SECONDS", 0.1)
    with pytest.raises(distributed_workers.ClusterError, match="no scheduler with a worker answers there"):
        distributed_workers.ClusterWorkers("tcp://127.0.0.1:1")
