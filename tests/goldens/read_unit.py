"""Tables of the special-function unit, and the proof by exhaustion that they say all."""

from __future__ import annotations

import json
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from on_device import description, launch

from verifier.machine.arithmetic import special_function_unit
from verifier.machine.arithmetic.numerics import flush32

CHUNK = 1 << 22
_THREADS = os.cpu_count() or 1
OPCODES = {
    "rcp": "rcp.approx{}.f32",
    "sqrt": "sqrt.approx{}.f32",
    "rsqrt": "rsqrt.approx{}.f32",
    "ex2": "ex2.approx{}.f32",
    "lg2": "lg2.approx{}.f32",
}
TEXT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 source, .param .u64 target)
{{
.reg .f32 %f<3>; .reg .b64 %rd<6>; .reg .b32 %r<5>;
ld.param.u64 %rd1, [source]; ld.param.u64 %rd2, [target];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
mul.wide.u32 %rd3, %r4, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
ld.global.f32 %f1, [%rd4]; {} %f2, %f1; st.global.f32 [%rd5], %f2; ret;
}}
"""


def answers(opcode: str, operands: np.ndarray) -> np.ndarray:
    """Return the device's results, float32, for float32 operands (a multiple of 256)."""
    given = torch.from_numpy(operands).cuda()
    result = torch.empty_like(given)
    launch(TEXT.format(opcode), "k", len(operands) // 256, 256, [given, result])
    return result.cpu().numpy()


def read(root: Path) -> None:
    """Write the tables of this device and compare all float32."""
    about = description()
    folder = root / "verifier/machine/tables" / f"sm_{about['compute_capability'].replace('.', '')}"
    folder.mkdir(parents=True, exist_ok=True)
    results = {}
    for name, opcode in OPCODES.items():
        first, last = special_function_unit.SPANS[name]
        results[name] = answers(opcode.format(".ftz"), np.arange(first, last, dtype=np.uint32).view("f4"))
        (folder / f"{name}.xz").write_bytes(special_function_unit.pack(results[name]))
    compared = {name: compare(results, name) for name in OPCODES}
    (folder / "about.json").write_text(json.dumps({**about, "compared": compared}, indent=1) + "\n")
    print(json.dumps(compared))


def compare(results: dict[str, np.ndarray], name: str) -> dict[str, int]:
    """Count the float32 on which the model was compared with the device; raise where they differ."""
    model = special_function_unit.Table(results=results)
    waiting: deque[Any] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, 1 << 32, CHUNK):
            operands = np.arange(start, start + CHUNK, dtype=np.uint64).astype(np.uint32).view("f4")
            for flush in (False, True):
                seen = answers(OPCODES[name].format(".ftz" if flush else ""), operands)
                waiting.append(pool.submit(_differences, model, name, operands, seen, flush))
            while len(waiting) > 4 * _THREADS:
                _demand_equal(name, waiting.popleft().result())
        for left in waiting:
            _demand_equal(name, left.result())
    return {"float32": 1 << 32, "different": 0}


def _demand_equal(name: str, found: np.ndarray) -> None:
    if len(found):
        examples = ", ".join(map(hex, found[:5]))
        raise AssertionError(f"{name}: {len(found)} answers differ, at {examples}")


def _differences(
    model: special_function_unit.Table, name: str, operands: np.ndarray, seen: np.ndarray, flush: bool
) -> np.ndarray:
    """Bits of the operands on which model and device differ; every NaN is the same."""
    given = flush32(operands) if flush else operands
    answer = model.evaluate(name, given)
    answer = flush32(answer) if flush else answer
    both = np.isnan(answer) & np.isnan(seen)
    return operands.view("u4")[(answer.view("u4") != seen.view("u4")) & ~both]
