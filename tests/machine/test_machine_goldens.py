"""The machine against answers read from a real device: the same bits."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_opcodes import OPCODES, operands
from golden_quotients import CHUNKS, RANGES, digest, pairs
from ptx_snippets import decode, execute

from verifier.machine import Machine, launch_ptx
from verifier.machine.arithmetic import special_function_unit as unit
from verifier.machine.arithmetic.approximation import allowed_error
from verifier.machine.arithmetic.special_function_unit import SPANS, _unpacked, device, pack
from verifier.machine.ptx.parser import parsed

FOLDER = Path(__file__).parents[1] / "goldens"
FLOATS = {"f16", "bf16", "f32", "f64", "f16x2", "bf16x2"}
# Instructions whose result a device is free to choose on these operands (PTX ISA, integer division).
UNDEFINED = ("div.s", "div.u", "rem.s", "rem.u")


@cache
def opcodes():
    with np.load(FOLDER / "opcodes.npz") as kept:
        return dict(kept)


@cache
def recorded(name):
    with np.load(FOLDER / f"{name}.npz") as kept:
        arrays = dict(kept)
    return json.loads(lzma.decompress(arrays.pop("manifest").tobytes())), arrays


def halves(values, kind):
    """Numbers that a result holds, to tell NaN from the rest."""
    if kind.endswith("x2"):
        return decode(values.view("u2").view("f2" if kind == "f16x2" else "u2"), kind[:-2])
    return decode(values.view({"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}[kind]), kind)


def differing(opcode, seen, answer):
    """Elements that differ in bits; every NaN is the same NaN."""
    kind = opcode.split(".")[-2 if opcode.startswith("cvt") else -1]
    if kind not in FLOATS:
        return np.flatnonzero(seen != answer)
    unit = "u2" if kind.endswith("x2") else seen.dtype
    both = np.isnan(halves(seen, kind)) & np.isnan(halves(answer, kind))
    return np.flatnonzero((seen.view(unit) != answer.view(unit)) & ~both)


@pytest.mark.parametrize("opcode", OPCODES)
def test_an_instruction_answers_as_the_device_did(opcode):
    kinds, result = OPCODES[opcode]
    kept = opcodes()
    given = [kept[f"operand {n} {' '.join(kinds)} {kind}"] for n, kind in enumerate(kinds)]
    answer = execute(opcode, given, result, machine=Machine(approximation=device()))
    seen = kept[f"result {opcode}"]
    if opcode.startswith(UNDEFINED):
        defined = given[1] != 0
        given, answer, seen = [x[defined] for x in given], answer[defined], seen[defined]
    wrong = differing(opcode, seen, answer)
    assert not wrong.size, [
        tuple(hex(int(x[i])) for x in (*given, seen, answer)) for i in wrong[:5] if i < len(seen)
    ]


def test_the_operands_of_the_goldens_are_those_of_this_list():
    kept = opcodes()
    for opcode, (kinds, _) in OPCODES.items():
        for number, (kind, array) in enumerate(zip(kinds, operands(kinds), strict=True)):
            assert (kept[f"operand {number} {' '.join(kinds)} {kind}"] == array).all(), opcode


def named(launch):
    return f"{launch['subject']}-{launch['dtype']}-{launch['kernel'][:40]}"


def replay(launch, arrays, texts, **machine):
    """Run a recorded launch; give (kept, seen) for every argument that the device changed."""
    values, changed = [], []
    for argument in launch["arguments"]:
        if "before" in argument:
            memory = torch.from_numpy(arrays[argument["before"]].copy())
            values.append(memory)
            if argument["after"] is not None:
                changed.append((arrays[argument["after"]], memory))
        elif "null" in argument:
            values.append(None)
        elif "bits" in argument:
            values.append(np.frombuffer(bytes.fromhex(argument["bits"]), dtype=argument["dtype"])[0])
        else:
            number = argument["python"]
            values.append(float.fromhex(number) if isinstance(number, str) else number)
    text = texts[launch["ptx"]]
    values += [None] * (parameters(text, launch["kernel"]) - len(values))
    launch_ptx(
        text,
        launch["kernel"],
        launch["grid"],
        launch["block"],
        launch["shared"],
        values,
        machine=Machine(**machine),
    )
    return [(kept, memory.numpy()) for kept, memory in changed]


def parameters(text, kernel):
    return len(parsed(text).functions[kernel].parameters)


def wrong_bytes(launch, name, **machine):
    manifest, arrays = recorded(name)
    pairs = replay(launch, arrays, manifest["ptx"], **machine)
    assert pairs, "the launch changed nothing on the device"
    return sum(int(np.count_nonzero(kept != seen)) for kept, seen in pairs)


def launches(*names):
    """Return (file, place in it) of every recorded launch, and a name for each."""
    found = [(name, n) for name in names for n in range(len(recorded(name)[0]["launches"]))]
    return {"argvalues": found, "ids": [named(recorded(name)[0]["launches"][n]) for name, n in found]}


@pytest.mark.parametrize(("name", "number"), **launches("triton", "cuda", "clusters"))
def test_a_kernel_computes_the_bits_that_the_device_computed(name, number):
    launch = recorded(name)[0]["launches"][number]
    assert wrong_bytes(launch, name, approximation=device(), contraction="on") == 0


@pytest.mark.parametrize(("name", "number"), **launches("liger", "fla"))
def test_a_kernel_of_a_library_computes_the_bits_that_the_device_computed(name, number):
    launch = recorded(name)[0]["launches"][number]
    assert wrong_bytes(launch, name, approximation=device(), contraction="on") == 0


def quotients():
    return json.loads((FOLDER / "quotients.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("place", RANGES)
def test_quotients_by_div_full_are_those_of_the_device(place):
    kept = quotients()["digests"][place]
    assert len(kept) == CHUNKS
    with np.errstate(all="ignore"):
        assert [digest(device().evaluate("div", *pairs(place, chunk))) for chunk in range(CHUNKS)] == kept


@pytest.mark.parametrize("place", RANGES)
def test_a_quotient_that_is_rounded_once_would_be_seen_in_each_chunk(place):
    with np.errstate(all="ignore"):
        assert digest(np.divide(*pairs(place, 0))) != quotients()["digests"][place][0]


def test_neither_the_tables_nor_contraction_can_be_left_out():
    softmax = [n for n in recorded("triton")[0]["launches"] if n["subject"] == "softmax_triton"]
    textbook = [n for n in recorded("cuda")[0]["launches"] if n["subject"] == "layer_norm_textbook_cuda"]
    assert any(wrong_bytes(n, "triton", contraction="on") for n in softmax)
    assert any(wrong_bytes(n, "cuda", approximation=device(), contraction="off") for n in textbook)


@pytest.mark.parametrize(
    ("name", "operand", "bits"),
    [
        # Read off the device one by one, in the ranges where the tables do not speak for themselves.
        ("ex2", -1.0, 0x3F000000),
        ("ex2", -0.5, 0x3F3504F2),
        ("ex2", 127.99999, 0x7F7FFFA8),
        ("ex2", 128.0, 0x7F800000),
        ("ex2", -1e-30, 0x3F800000),
        ("ex2", -126.0, 0x00800000),
        ("lg2", 0.5, 0xBF7FFFFE),
        ("lg2", 2.0, 0x3F800000),
        ("lg2", 0.0, 0xFF800000),
        ("lg2", 1 + 2.0**-23, 0x3495F600),
        ("rcp", -0.0, 0xFF800000),
        ("rcp", float("inf"), 0),
        ("rsqrt", float("inf"), 0),
        ("rsqrt", -0.0, 0xFF800000),
        ("sqrt", -0.0, 0x80000000),
    ],
)
def test_the_unit_answers_in_special_ranges(name, operand, bits):
    answer = device().evaluate(name, np.array([operand], dtype="f4"))
    assert hex(int(answer.view("u4")[0])) == hex(bits)


@pytest.mark.parametrize("name", ["rcp", "sqrt", "rsqrt", "ex2", "lg2"])
def test_the_tables_stay_within_the_documented_errors(name):
    """And the documented errors are no idle figures: no table is correctly rounded."""
    first, last = SPANS[name]
    bits = np.random.default_rng(3).integers(first, last, 20000).astype("u4")
    x = bits.view("f4")
    seen = device().evaluate(name, x).astype(np.float64)
    functions = {"rcp": np.reciprocal, "sqrt": np.sqrt, "ex2": np.exp2, "lg2": np.log2}
    wide = x.astype(np.float64)
    exact = functions[name](wide) if name != "rsqrt" else 1 / np.sqrt(wide)
    # The reference errs by 2^-52 of itself.
    assert (np.abs(seen - exact) <= allowed_error(name, exact) + np.abs(exact) * 2.0**-52).all()
    assert (seen.astype("f4") != exact.astype("f4")).any()


@pytest.mark.parametrize("steps", [[1, -1, 0, 2**31 - 1, -(2**31)], [0] * 9])
def test_tables_are_unpacked_as_they_were_packed(steps, tmp_path):
    results = np.cumsum(np.array(steps, dtype=np.int32), dtype=np.int32).view("f4")
    (tmp_path / "t.xz").write_bytes(pack(results))
    assert (_unpacked(tmp_path / "t.xz").view("u4") == results.view("u4")).all()


def test_an_architecture_without_tables_is_named():
    with pytest.raises(FileNotFoundError, match=r"sm_75.*there are sm_90"):
        device(75)


def test_the_goldens_keep_within_five_megabytes():
    tables = Path(unit.__file__).parents[1] / "tables"
    assert sum(f.stat().st_size for folder in (FOLDER, tables) for f in folder.rglob("*.*z")) < 5_000_000
