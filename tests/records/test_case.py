"""A case file gives back the same case, bit by bit, or says what is wrong with it."""

import json
import math

import pytest
import torch
from small_cases import case_of

from verifier.records import case as cases
from verifier.records.case import CaseError, raw_bytes

DTYPES = ("float16", "bfloat16", "float32", "float64")
INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor):
    return tensor.reshape(-1).view(INTEGER[tensor.element_size()])


def awkward(dtype):
    """Every kind of number a format has: NaN with a payload and a sign, infinities, subnormals, -0."""
    kind = getattr(torch, dtype)
    info = torch.finfo(kind)
    plain = torch.tensor(
        [math.nan, -math.nan, math.inf, -math.inf, -0.0, info.tiny / 2, info.max, 1 + info.eps], dtype=kind
    )
    payload = bits(plain).clone()
    payload[0] += 3
    return payload.view(kind).reshape(2, 4)


def assert_same(found, case):
    for name, tensor in case.tensors.items():
        if tensor is None:
            assert found.tensors[name] is None
            continue
        assert found.tensors[name].dtype == tensor.dtype
        assert found.tensors[name].shape == tensor.shape
        assert tensor.numel() == 0 or torch.equal(bits(found.tensors[name]), bits(tensor))
    for name in (
        "op",
        "dtype",
        "scalars",
        "layouts",
        "rows",
        "columns",
        "kappa",
        "largest",
        "hazard",
        "seed",
        "origin",
    ):
        assert getattr(found, name) == getattr(case, name), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_survives_the_file(dtype, tmp_path):
    case = case_of(awkward(dtype))
    cases.save(case, tmp_path / "c.json", check="forward_error")
    found, document = cases.load(tmp_path / "c.json")
    assert_same(found, case)
    assert document["check"] == "forward_error"


@pytest.mark.parametrize("shape", [(), (0, 4), (3, 0), (1,)])
def test_empty_and_scalar_tensors_survive_the_file(shape, tmp_path):
    case = case_of(torch.zeros(shape))
    cases.save(case, tmp_path / "c.json")
    assert_same(cases.load(tmp_path / "c.json")[0], case)


def test_a_large_tensor_stands_beside_the_file_and_moves_with_it(tmp_path):
    case = case_of(torch.arange(2**18 + 1, dtype=torch.float32).reshape(1, -1))
    cases.save(case, tmp_path / "a" / "c.json")
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["c.input.bin", "c.json"]
    (tmp_path / "a").rename(tmp_path / "b")
    assert_same(cases.load(tmp_path / "b" / "c.json")[0], case)
    (tmp_path / "b" / "c.input.bin").unlink()
    with pytest.raises(CaseError, match=r"c\.json"):
        cases.load(tmp_path / "b" / "c.json")


def broken(change):
    document = cases.to_document(case_of(torch.ones(2, 4)))
    change(document)
    return json.dumps(document)


CORRUPT = {
    "no JSON": "{",
    "a list": "[]",
    "not UTF-8": b"\xff\xfe\x00",
    "another schema": broken(lambda d: d.update(schema=99)),
    "no tensors": broken(lambda d: d.pop("tensors")),
    "no op": broken(lambda d: d.pop("op")),
    "no input": broken(lambda d: d["tensors"].pop("input")),
    "a dtype that is none": broken(lambda d: d["tensors"]["input"].update(dtype="float99")),
    "a dtype that is no dtype": broken(lambda d: d["tensors"]["input"].update(dtype="nn")),
    "a shape that does not fit": broken(lambda d: d["tensors"]["input"].update(shape=[3, 4])),
    "bytes that are cut off": broken(lambda d: d["tensors"]["input"].update(base64="AAAA")),
    "bytes that are no base64": broken(lambda d: d["tensors"]["input"].update(base64="!!")),
    "rows that are no number": broken(lambda d: d.update(rows="many")),
    "rows without end": broken(lambda d: d.update(rows=math.inf)),
    "a file elsewhere": broken(lambda d: d["tensors"].update(input={"file": "../x", "dtype": "float32"})),
    "a layout that is none": broken(lambda d: d.update(layouts={"input": {"order": "sideways"}})),
    "an unknown case dtype": broken(lambda d: d.update(dtype="float99")),
}


@pytest.mark.parametrize("what", list(CORRUPT))
def test_a_corrupt_file_is_an_error_that_names_it(what, tmp_path):
    path = tmp_path / "corrupt.json"
    content = CORRUPT[what]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CaseError, match=r"corrupt\.json"):
        cases.load(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(CaseError, match=r"nowhere\.json"):
        cases.load(tmp_path / "nowhere.json")


def test_one_element_with_a_stride_keeps_its_bytes():
    lone = torch.arange(4, dtype=torch.float16)[1::2][:1]
    assert lone.stride() == (2,)
    assert raw_bytes(lone) == raw_bytes(torch.tensor([1.0], dtype=torch.float16))
