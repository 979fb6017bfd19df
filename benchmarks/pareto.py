"""Bandwidth of every layer norm against its proved bound and the errors that it makes, and a picture of it.

    python benchmarks/pareto.py --out pareto.json [--with liger]      on a machine with a CUDA device
    python benchmarks/pareto.py --picture pareto.svg pareto.json      anywhere

The forward pass in float32 of 16384 rows of 4096 numbers is timed as benchmarks/kernels.py does it. Errors
are those of the first rows of inputs with standard deviation 1 around 0 and around 10000, against exact
values; a bound is what the theorems prove of the declaration on those very rows. Others declare nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_contenders import EPS, PACKAGES, Contender, available, contenders
from kernel_grids import Work

from kernels import compiler_note, copy_bandwidth, measure, versions
from verifier.checks.support.truth import Truth
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.oracle.solve import solve
from verifier.records.case import Case
from verifier.records.subject import Subject

WORK = Work(
    system="", op="layer_norm", direction="forward", dtype="float32", rows=16384, columns=4096, coarse=True
)
MEANS = (0.0, 1e4)
"""Of the elements, whose standard deviation is 1."""
JUDGED = 64
"""Rows that are compared with exact values."""
COLOURS = {"corrected": "#1b6ca8", "published": "#c4572b", "peer": "#6b6b6b"}
LABELS = (-11, -19, -27)
"""Points below a mark at which its number stands, in turn: many are nearly as fast as the copy."""
NAMES = {"corrected": "of this project", "published": "published, with known defects", "peer": "of others"}


def main(given: Sequence[str] | None = None) -> int:
    """Measure, or draw what was measured; 2 where there is no device."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="where to write what is measured")
    parser.add_argument("--picture", type=Path, help="where to draw it")
    parser.add_argument("measured", type=Path, nargs="?", help="what was measured, to be drawn")
    parser.add_argument("--with", dest="with_", action="append", choices=sorted(PACKAGES), default=[])
    options = parser.parse_args(given)
    if options.picture is not None and options.measured is not None:
        draw(options.picture, json.loads(options.measured.read_text(encoding="utf-8")))
        return 0
    if options.out is None:
        parser.error("either --out, or --picture and what was measured")
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here: nothing to measure", file=sys.stderr)
        return 2
    usable, missing = available(tuple(options.with_))
    notes = [*(f"{name} is not measured: {why}" for name, why in missing.items()), *compiler_note()]
    copies = [copy_bandwidth() for _ in range(3)]
    found = contenders(WORK, usable)
    seconds = {one["contender"]: one for one in measure(WORK, found, notes)}
    places = [place_of(one, seconds[one.name], WORK, "cuda") for one in found if one.name in seconds]
    document = {
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "work": WORK.name.strip(),
        "copy_bytes_per_second": statistics.median(copies),
        "notes": notes,
        "places": places,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for one in places:
        print(one)
    return 0


def place_of(one: Contender, timed: dict[str, Any], work: Work, device: str) -> dict[str, Any]:
    """Return what the picture shows of a contender: bandwidth in bytes per second, errors, bounds."""
    return {
        "name": one.name,
        "kind": one.kind,
        "bytes_per_second": timed["least_bytes"] / timed["seconds"],
        "errors": [errors_of(one, work, mean, device) for mean in MEANS],
    }


def errors_of(one: Contender, work: Work, mean: float, device: str) -> dict[str, float | None]:
    """Return the worst error in the first rows, and the largest bound there; None without a declaration."""
    given = numbers(work, mean)
    on_device = {n: t.to(device) if isinstance(t, torch.Tensor) else t for n, t in given.items()}
    output = one.call(on_device)
    output = output[0] if isinstance(output, tuple) else output
    rows = given["input"][:JUDGED]
    case = Case(
        op=work.op,
        dtype=work.dtype,
        tensors={"input": rows, "weight": given["weight"], "bias": given["bias"]},
        scalars={"normalized_shape": (work.columns,), "eps": EPS},
        rows=len(rows),
        columns=work.columns,
    )
    the_op = op(work.op)
    exact = the_op.exact(solve(the_op.problem(case)))["output"]
    low, _ = exact.error_of(output[: len(rows)].cpu().double().numpy())
    return {
        "observed": float(low.max()),
        "bound": None if one.subject is None else bound_of(one.subject, case),
    }


def bound_of(subject: Subject, case: Case) -> float | None:
    """Return the largest bound on an element of the output; None if an element has none."""
    place = backend("cuda" if torch.cuda.is_available() else "machine")
    truth = Truth(subject=subject, case=case, setting=place.setting(subject, case.dtype))
    found = truth.bounds["output"]
    proved = bool(np.all(found.covered)) and bool(np.all(np.isfinite(found.bound)))
    return float(np.max(found.bound)) if proved else None


def numbers(work: Work, mean: float) -> dict[str, Any]:
    """Draw an input around a mean with standard deviation 1, on the CPU: the same on every device."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "input": draw(work.rows, work.columns) + mean,
        "weight": draw(work.columns),
        "bias": draw(work.columns),
        "normalized_shape": (work.columns,),
        "eps": EPS,
    }


# ---- The picture ----


def draw(path: Path, document: dict[str, Any]) -> None:
    """Draw a panel for each mean: a number for each contender, its error, and above it its bound."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "norm-verifier"
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    places = sorted(document["places"], key=lambda one: -float(one["bytes_per_second"]))
    figure, panels = plt.subplots(len(MEANS), 1, figsize=(10, 8.4), sharex=True, sharey=True)
    for number, (panel, mean) in enumerate(zip(panels, MEANS, strict=True)):
        for rank, one in enumerate(places, 1):
            x = one["bytes_per_second"] / document["copy_bytes_per_second"]
            colour, found = COLOURS[one["kind"]], one["errors"][number]
            seen, bound = found["observed"], found["bound"]
            panel.plot([x], [seen], "o", color=colour, markerfacecolor="white", markersize=5)
            if bound is not None:
                panel.plot([x, x], [seen, bound], "-", color=colour, linewidth=0.7)
                panel.plot([x], [bound], "_", color=colour, markersize=9, markeredgewidth=2)
            below = (0, LABELS[rank % len(LABELS)])
            panel.annotate(str(rank), (x, seen), below, textcoords="offset points", ha="center", fontsize=7)
        panel.set_yscale("log")
        panel.set_title(f"mean {mean:g}, standard deviation 1", fontsize=10)
        panel.set_ylabel("largest |computed - exact|")
        panel.set_ylim(1e-7, 2e4)
        panel.grid(visible=True, linewidth=0.3)
    panels[-1].set_xlabel("share of the device's copy bandwidth")
    marks = [
        *(
            Line2D([], [], color=COLOURS[kind], marker="o", linestyle="", label=NAMES[kind])
            for kind in COLOURS
        ),
        Line2D([], [], color="black", marker="_", linestyle="", label="proved bound"),
        Line2D([], [], color="black", marker="o", markerfacecolor="white", linestyle="", label="error seen"),
    ]
    panels[0].legend(handles=marks, fontsize=7, loc="upper left")
    listed = "\n".join(f"{rank:2}  {one['name']}" for rank, one in enumerate(places, 1))
    figure.text(0.71, 0.5, listed, fontsize=7, va="center", family="monospace")
    figure.suptitle(f"{document['work']}, {document['device']}", fontsize=10)
    figure.subplots_adjust(left=0.07, right=0.7, bottom=0.06, top=0.92, hspace=0.1)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


if __name__ == "__main__":
    raise SystemExit(main())
