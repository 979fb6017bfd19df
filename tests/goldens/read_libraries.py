"""Launches of the norms that Liger-Kernel and flash-linear-attention publish, unmodified, on a device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from read_kernels import DTYPES, Recorder, end, fill_fresh_memory, recording

from verifier.cases.recipe import Recipe, Values, build
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.ops import op
from verifier.records.subject import Subject
from verifier.subjects.libraries import library_files, why_absent
from verifier.subjects.load_file import load

DISTRIBUTIONS = {"liger": "liger-kernel", "fla": "fla-core"}
ROWS, COLUMNS, MORE_COLUMNS = 3, 96, 520
"""No powers of two."""
LONG = (
    *("fla_layer_norm", "fla_rms_norm", "fla_add_rms_norm", "fla_l2_norm", "fla_layernorm_fn_gated"),
    *("fla_rms_norm_gated_silu", "fla_layer_norm_gated_sigmoid"),
)
"""Norms of which longer rows run, too: fla-core has kernels of its own for more than 512 columns."""
ATOMIC = re.compile(r"^\s*(?:@!?%p\d+\s+)?(?:atom|red)\.", re.MULTILINE)


@contextmanager
def first_configuration() -> Iterator[None]:
    """Let an autotuner take its first configuration without trying any."""
    from triton.runtime.autotuner import Autotuner

    usual = Autotuner.run

    def run(tuner: Any, *given: Any, **options: Any) -> Any:
        tuner.configs = tuner.configs[:1]
        return usual(tuner, *given, **options)

    Autotuner.run = run
    try:
        yield
    finally:
        Autotuner.run = usual


def run(subject: Subject, dtype: str, columns: int) -> None:
    """Run forward and backward; raise what the norm raises."""
    described = op(subject.op)
    gradients = bool(described.differentiable) and subject.differentiable
    flat = subject.domain is not None and subject.domain.max_rank == 2
    recipe = Recipe(rows=ROWS, columns=columns, variant=int(flat), input=Values(seed=11), eps=1e-5)
    case = build(described, subject, dtype, recipe, gradients=gradients)
    if case is None:
        raise ValueError("no such case")
    seen = execute(subject, case, backend=backend("cuda"), gradients=gradients)
    if seen.status != "ok":
        raise RuntimeError(f"{seen.status} {seen.message}")


def fixed(recorder: Recorder) -> list[str]:
    """Leave out launches whose order of additions is the device's own; name their kernels."""
    left_out = {launch["ptx"] for launch in recorder.launches if ATOMIC.search(recorder.texts[launch["ptx"]])}
    names = {launch["kernel"] for launch in recorder.launches if launch["ptx"] in left_out}
    recorder.launches = [launch for launch in recorder.launches if launch["ptx"] not in left_out]
    recorder.texts = {digest: text for digest, text in recorder.texts.items() if digest not in left_out}
    return sorted(names)


def read(root: Path) -> None:
    """Write tests/goldens/liger.npz and fla.npz: every declared norm in every dtype."""
    failed: list[str] = []
    fill_fresh_memory()
    for library, distribution in DISTRIBUTIONS.items():
        recorder = Recorder()
        with recording(recorder), first_configuration():
            for subject in load(library_files()[library]).subjects:
                if absent := why_absent(subject):
                    failed.append(f"{subject.name}: {absent}")
                    continue
                for dtype in DTYPES:
                    kind = str(dtype).removeprefix("torch.")
                    recorder.where = {"subject": subject.name, "dtype": kind}
                    for columns in (COLUMNS, MORE_COLUMNS) if subject.name in LONG else (COLUMNS,):
                        try:
                            run(subject, kind, columns)
                            torch.cuda.synchronize()
                        except Exception as error:
                            failed.append(f"{subject.name} {kind} {columns}: {type(error).__name__}: {error}")
        more = {"packages": {distribution: version(distribution)}, "atomic": fixed(recorder)}
        recorder.write(root / f"tests/goldens/{library}.npz", **more)
    end(failed)
