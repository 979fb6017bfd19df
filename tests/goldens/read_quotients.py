"""Quotients by `div.full.f32` on a device, and the machine's model of it on the same pairs."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from on_device import description, launch

sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))

from golden_quotients import CHUNK, CHUNKS, RANGES, digest, pairs

from verifier.machine.arithmetic.special_function_unit import device

TEXT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 dividends, .param .u64 divisors, .param .u64 target)
{
.reg .f32 %f<4>; .reg .b64 %rd<8>; .reg .b32 %r<5>;
ld.param.u64 %rd1, [dividends]; ld.param.u64 %rd2, [divisors]; ld.param.u64 %rd3, [target];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
mul.wide.u32 %rd4, %r4, 4; add.u64 %rd5, %rd1, %rd4; add.u64 %rd6, %rd2, %rd4; add.u64 %rd7, %rd3, %rd4;
ld.global.f32 %f1, [%rd5]; ld.global.f32 %f2, [%rd6]; div.full.f32 %f3, %f1, %f2;
st.global.f32 [%rd7], %f3; ret;
}
"""


def answers(dividends: np.ndarray, divisors: np.ndarray) -> np.ndarray:
    """Return the device's quotients, float32."""
    given = [torch.from_numpy(x).cuda() for x in (dividends, divisors)]
    result = torch.empty_like(given[0])
    launch(TEXT, "k", CHUNK // 256, 256, [*given, result])
    return result.cpu().numpy()


def read(root: Path) -> None:
    """Write tests/goldens/quotients.json: digests of all chunks, and how many quotients the model misses."""
    model, compared, digests = device(), {}, {}
    for place in RANGES:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            drawn = list(pool.map(lambda chunk, place=place: pairs(place, chunk), range(CHUNKS)))
            seen = [answers(*pair) for pair in drawn]
            modelled = list(pool.map(lambda pair: model.evaluate("div", *pair), drawn))
        digests[place] = [digest(quotients) for quotients in seen]
        rounded = [_divided(*pair) for pair in drawn]
        compared[place] = {
            "pairs": CHUNKS * CHUNK,
            "otherwise than the model": _different(seen, modelled),
            "otherwise than rounded once": _different(seen, rounded),
        }
    path = root / "tests/goldens/quotients.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({**description(), "compared": compared, "digests": digests}, indent=1) + "\n",
        encoding="utf-8",
    )
    print(json.dumps(compared))
    if missed := {place: n for place, one in compared.items() if (n := one["otherwise than the model"])}:
        raise AssertionError(f"the model differs from the device: {missed}")


def _divided(dividends: np.ndarray, divisors: np.ndarray) -> np.ndarray:
    """Round every quotient once."""
    with np.errstate(all="ignore"):
        return np.divide(dividends, divisors)


def _different(seen: list[np.ndarray], others: list[np.ndarray]) -> int:
    """Count the quotients of other bits; every NaN is the same."""
    return sum(
        int(np.count_nonzero((one.view("u4") != other.view("u4")) & ~(np.isnan(one) & np.isnan(other))))
        for one, other in zip(seen, others, strict=True)
    )
