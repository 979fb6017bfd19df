"""Turns the times of benchmarks/kernels.py into Markdown tables and plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernel_grids import PUBLISHED

Record = dict[str, Any]
MOST_NOTES = 40


def write(folder: Path, document: dict[str, Any]) -> list[Path]:
    """Write kernels.md, kernels.json and a PNG for each grid; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "kernels.json", folder / "kernels.md"]
    written[0].write_text(text_of(document), encoding="utf-8")
    written[1].write_text("\n".join(page(document)) + "\n", encoding="utf-8")
    for system in sorted({r["system"] for r in document["records"]}):
        path = folder / f"kernels-{system}.png"
        plot(path, document, system)
        written.append(path)
    return written


def text_of(document: dict[str, Any]) -> str:
    """Return the document as JSON, a line a record, times to four digits: rounds repeat to two or three."""
    rest = {name: value for name, value in document.items() if name != "records"}
    lines = (json.dumps(short(record), separators=(",", ":")) for record in document["records"])
    return f'{json.dumps(rest)[:-1]}, "records": [\n' + ",\n".join(lines) + "\n]}\n"


def short(record: Record) -> Record:
    """Return a record with its times to four digits."""
    times = [float(f"{time:.3e}") for time in record["rounds"]]
    return {**record, "seconds": float(f"{record['seconds']:.3e}"), "rounds": times}


def page(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the Markdown page."""
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    copies = document["copies"]
    yield "# Speed of the kernels\n"
    yield f"{document['device']}, L2 cache {document['l2_bytes'] / 2**20:.0f} MiB; {versions}.\n"
    yield (
        f"Copy bandwidth in this run: {document['copy_bytes_per_second'] / 1e9:.0f} GB/s (read and written "
        f"bytes of a 1 GiB copy; {len(copies)} measurements from {min(copies) / 1e9:.0f} to "
        f"{max(copies) / 1e9:.0f}).\n"
    )
    yield (
        "Figures are fractions of that bandwidth: the least bytes that the op has to move (every tensor, "
        "parameter and statistic once) divided by the median time of a call, replayed in a CUDA graph over "
        "rotating sets of tensors that together exceed twice the L2 cache. `*`: not captured in a graph, so "
        "that launch latency is in the time. An empty cell was not measured.\n"
    )
    yield from coverage(document["records"])
    yield from headlines(document["records"])
    yield from beside_peers(document["records"])
    for key, records in groups(document["records"]):
        yield f"\n## {key}\n"
        yield from table(records, document["copy_bytes_per_second"])
    if document["notes"]:
        yield "\n## Not measured\n"
        notes = list(dict.fromkeys(document["notes"]))
        yield from (f"- {note}" for note in notes[:MOST_NOTES])
        if len(notes) > MOST_NOTES:
            yield f"- ... and {len(notes) - MOST_NOTES} more in kernels.json"


def groups(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """Group records by grid, op, direction and dtype."""
    found: dict[str, list[Record]] = {}
    for r in records:
        found.setdefault(f"{r['system']}: {r['op']} {r['direction']}, {r['dtype']}", []).append(r)
    return sorted(found.items())


def order(records: Sequence[Record]) -> list[str]:
    """Return the contenders: corrected, then published, then peers, each by name."""
    ranks = ("corrected", "published", "peer")
    return [n for _, n in sorted({(ranks.index(r["kind"]), r["contender"]) for r in records})]


def fraction(record: Record, copy: float) -> float:
    """Return the bandwidth of a record as a fraction of the copy's."""
    return float(record["least_bytes"] / record["seconds"] / copy)


def table(records: Sequence[Record], copy: float) -> Iterator[str]:
    """Yield a table of shapes by contenders."""
    names = order(records)
    cells = {(r["rows"], r["columns"], r["contender"]): r for r in records}
    yield "| rows x columns | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for rows, columns in sorted({key[:2] for key in cells}):
        row = [cells.get((rows, columns, name)) for name in names]
        texts = ["" if r is None else f"{fraction(r, copy):.2f}{'' if r['graph'] else '*'}" for r in row]
        yield f"| {rows} x {columns} | " + " | ".join(texts) + " |"


# ---- What was measured ----


def coverage(records: Sequence[Record]) -> Iterator[str]:
    """Yield the shapes of each grid that have a time in some dtype and direction, and torch.compile's."""
    yield "## What was measured\n"
    yield (
        "torch.compile takes seconds a shape and is measured at a few shapes of each grid only: its ranges "
        "below are over those, the other contenders' over all.\n"
    )
    yield "| grid | published there | op | measured here: rows x columns | of which torch.compile |"
    yield "|---|---|---|---|---|"
    for entry in PUBLISHED:
        chosen = select(records, system=entry.system)
        for op in sorted({r["op"] for r in chosen}):
            here, compiled = (
                {(r["rows"], r["columns"]) for r in select(chosen, op=op, **wanted)}
                for wanted in ({}, {"contender": "torch.compile"})
            )
            yield f"| {entry.system} | {entry.grid} | {op} | {shapes(here)} | {shapes(compiled) or 'none'} |"
    yield ""


def shapes(found: set[tuple[int, int]]) -> str:
    """Return shapes in words, as a product where they are one."""
    rows, columns = (sorted({shape[axis] for shape in found}) for axis in (0, 1))
    if len(found) == len(rows) * len(columns):
        words = " x ".join(", ".join(map(str, axis)) for axis in (rows, columns) if axis)
    else:
        words = "; ".join(f"{m} x {n}" for m, n in sorted(found))
    return f"{words} ({len(found)})" if len(found) > 1 else words


# ---- The published comparisons, repeated ----


def headlines(records: Sequence[Record]) -> Iterator[str]:
    """Yield the published figures, each beside what this run measured."""
    yield "## The published comparisons, repeated\n"
    yield "| published, on other hardware | source | here |\n|---|---|---|"
    for entry in PUBLISHED:
        here = HERE[entry.system](records) or "not measured in this run"
        yield f"| {entry.claim} | {entry.source} | {here} |"


NEAR = 0.97
"""Times of two contenders that differ by less are told apart by no run; the same code varies by 2 %."""


def beside_peers(records: Sequence[Record]) -> Iterator[str]:
    """Yield at how many shapes the fastest corrected kernel is ahead of the fastest peer, and where not."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for r in records:
        key = (r["system"], r["op"], r["direction"], r["dtype"], r["rows"], r["columns"])
        cells.setdefault(key, []).append(r)
    found = []
    for (system, op, direction, dtype, rows, columns), here in sorted(cells.items()):
        fastest = [
            min(select(here, kind=kind), key=lambda r: float(r["seconds"]), default=None)
            for kind in ("corrected", "peer")
        ]
        ours, peer = fastest
        if ours is not None and peer is not None:
            name = f"{system} {op} {direction} {dtype} | {rows} x {columns}"
            found.append((peer["seconds"] / ours["seconds"], name, ours, peer))
    yield "\n## Beside the fastest of torch, torch.compile, Liger and QuACK\n"
    if not found:
        yield "Not measured in this run."
        return
    ahead = sum(ratio >= 1 for ratio, *_ in found)
    behind = sorted((one for one in found if one[0] < NEAR), key=lambda one: one[0])
    near = len(found) - ahead - len(behind)
    yield (
        f"At {ahead} of {len(found)} shapes the fastest corrected kernel is as fast or faster, at "
        f"{near} slower by at most {1 - NEAR:.0%}, and at {len(behind)} by more:\n"
    )
    yield "| grid | rows x columns | speed beside the peer's | corrected, us | peer, us |"
    yield "|---|---|---|---|---|"
    for ratio, name, ours, peer in behind:
        times = (f"{r['contender']} {r['seconds'] * 1e6:.1f}" for r in (ours, peer))
        yield f"| {name} | {ratio:.2f} | " + " | ".join(times) + " |"


def select(records: Sequence[Record], **wanted: Any) -> list[Record]:
    return [r for r in records if all(r[name] == value for name, value in wanted.items())]


def span(values: Sequence[float], form: str = ".2f") -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def ratios(records: Sequence[Record], name: str, other: str) -> list[float]:
    """Return how many times faster `name` is than `other`, at every shape that both have."""
    base = {(r["rows"], r["columns"]): r["seconds"] for r in select(records, contender=other)}
    pairs = [(r, (r["rows"], r["columns"])) for r in select(records, contender=name)]
    return [base[shape] / r["seconds"] for r, shape in pairs if shape in base]


def _tutorial(records: Sequence[Record]) -> str:
    chosen = select(records, system="S1", direction="backward")
    found = []
    for name in order(chosen):
        speeds = [r["headline_bytes"] / r["seconds"] / 1e9 for r in select(chosen, contender=name)]
        found.append(f"{name} {span(speeds, '.0f')} GB/s")
    return "; ".join(found)


def _series(records: Sequence[Record]) -> str:
    found = []
    for dtype in ("float16", "float32"):
        chosen = select(records, system="S2", op="rms_norm", direction="forward", dtype=dtype)
        times = {
            name: ratios(chosen, name, "torch")
            for name in ("rms_norm_published_series_triton", "rms_norm_triton")
        }
        found += [f"{name} {dtype} {span(t, '.1f')} times torch" for name, t in times.items() if t]
    return "; ".join(found)


def _oneflow(records: Sequence[Record]) -> str:
    found = []
    for dtype in ("float16", "float32"):
        chosen = select(records, system="S3", op="layer_norm", direction="forward", dtype=dtype)
        if times := ratios(chosen, "layer_norm_welford_cuda", "torch"):
            ahead = sum(t > 1 for t in times)
            found.append(f"{dtype}: {span(times)} times torch, ahead at {ahead} of {len(times)} N")
    return "; ".join(found)


def _steps(records: Sequence[Record]) -> str:
    chosen = {r["contender"]: r["seconds"] for r in select(records, system="S4")}
    second = chosen.get("layer_norm_backward_published_warp_per_row_cuda")
    if second is None:
        return ""
    return "; ".join(
        f"{name.removeprefix('layer_norm_').removesuffix('_cuda')} {t * 1e6:.1f} us ({t / second:.2f} x v2)"
        for name, t in sorted(chosen.items(), key=lambda item: -item[1])
    )


HERE = {"S1": _tutorial, "S2": _series, "S3": _oneflow, "S4": _steps}


# ---- Plots ----


def plot(path: Path, document: dict[str, Any], system: str) -> None:
    """Draw a panel for each op, direction and dtype of a grid: fraction of the copy bandwidth by columns."""
    from matplotlib.figure import Figure

    panels = groups([r for r in document["records"] if r["system"] == system])
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(5 * across, 3.6 * down + 1.2), layout="constrained")
    names = order([r for _, records in panels for r in records])
    colours = {name: f"C{i % 10}" for i, name in enumerate(names)}
    lines: dict[str, Any] = {}
    for place, (key, records) in enumerate(panels):
        axes = figure.add_subplot(down, across, place + 1)
        rows = max(r["rows"] for r in records)
        axes.set_title(f"{key}, {rows} rows", fontsize=8)
        for name in order(records):
            chosen = sorted(
                (r["columns"], fraction(r, document["copy_bytes_per_second"]))
                for r in select(records, contender=name, rows=rows)
            )
            if not chosen:
                continue
            peer = any(r["kind"] == "peer" for r in select(records, contender=name))
            style = "--" if peer else "-"
            marker = "o" if names.index(name) < 10 else "s"
            lines[name] = axes.plot(
                *zip(*chosen, strict=True), style, marker=marker, ms=3, lw=1, color=colours[name]
            )[0]
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, None)
        axes.set_xlabel("columns", fontsize=8)
        axes.set_ylabel("fraction of copy bandwidth", fontsize=8)
        axes.grid(visible=True, alpha=0.3)
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=110)
