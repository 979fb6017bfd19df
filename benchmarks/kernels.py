"""Bandwidth of every corrected kernel beside the published ones, torch, torch.compile, Liger and QuACK.

Run it on a machine with a CUDA device: `python benchmarks/kernels.py --out results --budget 400s`. It leaves
`kernels.md` (the tables), `kernels.json` (every time) and a PNG for each grid in the folder.

How it measures. A point is one op, direction, dtype and shape (kernel_grids.py). Every contender gets the
same sets of tensors; there are so many sets that together they exceed twice the L2 cache, and a measured
pass goes through all of them, so that no call finds its tensors in the cache (rotation; nothing else is
flushed). A pass is captured once as a CUDA graph and replayed between two events: neither Python nor launch
latency is in the time. A contender that cannot be captured is timed without a graph, and is marked.
Contenders take turns within each of several rounds (one after the other where their results do not fit into
memory together); the figure is the median over rounds of the time of one call. Bandwidth is the least bytes
of the point divided by that time, as a fraction of the bandwidth of a large device-to-device copy (read and
written bytes) measured before, between and after the points of the same run.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kernel_contenders import PACKAGES, Contender, arguments, available, contenders, leaves
from kernel_grids import GRIDS, Work, headline_bytes, least_bytes, points
from kernel_report import write

ROUNDS = 7
"""Rounds of a point; the median is over them."""
ROUND_SECONDS = 0.004
"""Seconds that one contender replays within a round, long beside the events' resolution of 0.5 us."""
MOST_SETS = 256
MOST_BYTES = 24 * 2**30
"""Device memory for the tensors of one point."""
COPY_BYTES = 2**30
WARM_SHARE = 0.4
"""Share of the budget that filling the compilers' caches may take."""


def main(given: list[str] | None = None) -> int:
    options = parse(given)
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here: nothing to measure", file=sys.stderr)
        return 2
    started = time.monotonic()
    end = started + options.budget
    # The backward of one forward is run many times.
    importlib.import_module("torch._functorch.config").donated_buffer = False
    usable, missing = available(options.with_)
    notes = [f"{name} is not measured: {why}" for name, why in missing.items()]
    chosen = points(options.systems)
    if options.jobs > 1:
        warm(chosen, usable, options.jobs, started + WARM_SHARE * options.budget)
    notes += compiler_note()
    records, copies, reached = run(chosen, usable, end, notes)
    if reached < len(chosen):
        notes.append(f"the budget of {options.budget:g} s ended after {reached} of {len(chosen)} points")
    write(options.out, document(records, copies, notes, time.monotonic() - started))
    print(f"{reached} points, {len(records)} times; copy {statistics.median(copies) / 1e9:.0f} GB/s")
    return 0


def run(
    chosen: list[Work], extra: tuple[str, ...], end: float, notes: list[str]
) -> tuple[list[dict[str, Any]], list[float], int]:
    """Measure points until the clock or the device ends; a point that fails is noted, and costs no other."""
    copies, records, reached = [copy_bandwidth()], [], 0
    for work in chosen:
        if time.monotonic() > end:
            break
        try:
            records += measure(work, contenders(work, extra), notes)
            torch._dynamo.reset()  # static shapes: nothing is used again
            torch.cuda.empty_cache()
            reached += 1
            if reached % 20 == 0:
                copies.append(copy_bandwidth())
        except Exception as error:
            notes.append(f"{work.name}: {type(error).__name__}: {first_line(error)}")
            if lost():
                notes.append("the device was lost there; nothing after it is measured")
                return records, copies, reached
    copies.append(copy_bandwidth())
    return records, copies, reached


def lost() -> bool:
    """Return whether every further call would fail, as after an illegal access."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def parse(given: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the table, the times and plots")
    parser.add_argument("--budget", type=seconds, default=400.0, help="such as 400s or 10m")
    parser.add_argument("--systems", type=systems, default=tuple(GRIDS), help="such as S1,S3")
    parser.add_argument("--with", dest="with_", action="append", choices=sorted(PACKAGES), default=[])
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="compiling processes")
    options = parser.parse_args(given)
    options.with_ = tuple(dict.fromkeys(options.with_))
    return options


def seconds(text: str) -> float:
    units = {"s": 1.0, "m": 60.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        value = float(number) * units[unit]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 400s") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive time")
    return value


def systems(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in GRIDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no grid {unknown[0]!r}; there are: {', '.join(GRIDS)}")
    return names


# ---- Compiling ahead ----


def warm(chosen: list[Work], extra: tuple[str, ...], jobs: int, end: float) -> None:
    """Run every contender once in other processes, which leaves its code in the compilers' caches."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # each of our processes is one
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        pending = [pool.apply_async(run_once, (work, extra)) for work in chosen]
        for result in pending:
            try:
                result.get(max(end - time.monotonic(), 0.001))
            except multiprocessing.TimeoutError:
                break
            except Exception as error:  # the measurement meets it again and notes it
                print(f"while compiling ahead: {first_line(error)}", file=sys.stderr)
        pool.terminate()
    del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]


def run_once(work: Work, extra: tuple[str, ...]) -> None:
    """Call every contender of a point once; on fewer rows where code depends on columns and dtype alone."""
    importlib.import_module("torch._functorch.config").donated_buffer = False
    if not work.coarse:
        work = replace(work, rows=min(work.rows, max(1024, 2**25 // work.columns // 1024 * 1024)))
    given = arguments(work, "cuda")
    for contender in contenders(work, extra):
        try:
            step(work, contender, given)()
        except Exception:  # the measurement meets it again and notes it
            torch.cuda.synchronize()
    del given
    torch.cuda.empty_cache()


def compiler_note() -> list[str]:
    """Try torch.compile on a small tensor; return the note that says why it is absent."""
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device="cuda"))
    except Exception as error:
        COMPILE["works"] = False
        return [f"torch.compile is not measured: {type(error).__name__}: {str(error).splitlines()[0]}"]
    return []


COMPILE = {"works": True}


# ---- Timing ----


def copy_bandwidth() -> float:
    """Return the bytes per second of a copy of 1 GiB, read and written bytes counted."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / statistics.median(timed(lambda: target.copy_(source)) for _ in range(10))


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds between two events around a call."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def step(work: Work, contender: Contender, given: dict[str, Any]) -> Callable[[], Any]:
    """Return what is measured: the forward call, or the backward of a forward that has been made."""
    if work.direction == "forward" or work.op == "layer_norm_backward":
        return lambda: contender.call(given)
    output = contender.call(given)
    output = output[0] if isinstance(output, tuple) else output
    wanted = [given[name] for name in leaves(given)]
    return lambda: torch.autograd.grad(output, wanted, given["grad_output"], retain_graph=True)


def number_of_sets(work: Work, cache_bytes: int) -> int:
    """Return how many sets of tensors a pass goes through: twice the cache, within the memory."""
    bytes_of_set = headline_bytes(work)
    return max(1, min(MOST_SETS, -(-2 * cache_bytes // bytes_of_set), MOST_BYTES // (2 * bytes_of_set)))


def measure(work: Work, found: list[Contender], notes: list[str]) -> list[dict[str, Any]]:
    """Return one record for each contender: seconds of one call in every round.

    Contenders take turns within a round; where their results do not fit into memory together, each has all
    of its rounds before the next begins.
    """
    together = headline_bytes(work) * (len(found) + 2) <= MOST_BYTES
    stream = torch.cuda.Stream()
    records = []
    with torch.cuda.stream(stream):
        count = number_of_sets(work, torch.cuda.get_device_properties(0).L2_cache_size)
        sets = [arguments(work, "cuda", seed) for seed in range(count)]
        for group in [found] if together else [[contender] for contender in found]:
            records += take_turns(work, group, sets, stream, notes)
            torch.cuda.empty_cache()
    stream.synchronize()
    return records


def take_turns(
    work: Work,
    group: list[Contender],
    sets: list[dict[str, Any]],
    stream: torch.cuda.Stream,
    notes: list[str],
) -> list[dict[str, Any]]:
    """Measure contenders in turn within each round."""
    passes: list[tuple[Contender, Callable[[], Any], bool, list[float]]] = []
    pool = torch.cuda.graph_pool_handle()  # one for all: a replay ends before the next begins
    for contender in group:
        if contender.name == "torch.compile" and not COMPILE["works"]:
            continue
        try:
            passes.append((contender, *one_pass(work, contender, sets, stream, pool), []))
        except Exception as error:
            stream.synchronize()
            notes.append(f"{work.name}: {contender.name}: {type(error).__name__}: {first_line(error)}")
    again = [repetitions(run) for _, run, _, _ in passes]
    for _ in range(ROUNDS):
        for number, (_, run, _, times) in zip(again, passes, strict=True):
            total = timed(partial(repeat, run, number))
            times.append(total / number / len(sets))
    return [record(work, *entry, len(sets)) for entry in passes]


def repeat(run: Callable[[], Any], number: int) -> None:
    for _ in range(number):
        run()


def one_pass(
    work: Work, contender: Contender, sets: list[dict[str, Any]], stream: torch.cuda.Stream, pool: Any
) -> tuple[Callable[[], Any], bool]:
    """Return a pass through all sets, and whether it is a graph."""
    calls = [step(work, contender, given) for given in sets]

    def plain() -> None:
        for call in calls:
            call()

    plain()  # compiles, and tunes where there is something to tune
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            plain()
    except Exception:
        torch.cuda.synchronize()
        plain()
        stream.synchronize()
        return plain, False

    def replay(alive: Any = calls) -> None:
        del alive  # what the forward saved stays allocated as long as its graph may run
        graph.replay()

    replay()
    stream.synchronize()
    return replay, True


def repetitions(run: Callable[[], Any]) -> int:
    """Return how often to run a pass within a round."""
    return max(1, min(200, round(ROUND_SECONDS / max(timed(run), 1e-7))))


def record(
    work: Work, contender: Contender, _: Callable[[], Any], graph: bool, times: list[float], count: int
) -> dict[str, Any]:
    """Return what the report keeps of one contender at one point."""
    return {
        **asdict(work),
        "contender": contender.name,
        "kind": contender.kind,
        "seconds": statistics.median(times),
        "rounds": times,
        "sets": count,
        "graph": graph,
        "least_bytes": least_bytes(work),
        "headline_bytes": headline_bytes(work),
    }


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:160]


def document(
    records: list[dict[str, Any]], copies: list[float], notes: list[str], took: float
) -> dict[str, Any]:
    """Return everything that the report is written from."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "l2_bytes": properties.L2_cache_size,
        "versions": versions(),
        "copy_bytes_per_second": statistics.median(copies),
        "copies": copies,
        "seconds": took,
        "notes": notes,
        "records": records,
    }


def versions() -> dict[str, str]:
    """Return what a measurement was made with."""
    import triton

    own = {"torch": torch.__version__, "triton": triton.__version__}
    return {**own, "python": platform.python_version()}


if __name__ == "__main__":
    raise SystemExit(main())
