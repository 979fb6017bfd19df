"""The JSON Schema of certificates names every key that `certify --json` writes, and no other."""

import copy
import json
from dataclasses import fields
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from verifier.commands.command_line import app
from verifier.commands.report import html
from verifier.records.certificate import (
    VERSION,
    Certificate,
    CodeProof,
    ReadOrder,
    ReadSum,
    RowBound,
    StatedTheorem,
    TheoremBound,
)
from verifier.subjects.load_file import builtin_files

SCHEMA = json.loads((Path(html.__file__).parent / "certificates.schema.json").read_text())

FAULTY = Path(__file__).parents[1] / "faulty_kernels"


def strict(schema):
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **found} if "required" in found else found


def problems(document):
    return [error.message for error in Draft202012Validator(strict(SCHEMA)).iter_errors(document)]


def test_the_schema_has_the_fields_of_the_records():
    for kind, name in ((Certificate, "certificate"), (CodeProof, "proof"), (ReadSum, "sum")):
        assert set(SCHEMA["$defs"][name]["properties"]) == {one.name for one in fields(kind)}
    parts = {"bound": TheoremBound, "row": RowBound, "order": ReadOrder, "theorem": StatedTheorem}
    for name, kind in parts.items():
        assert set(SCHEMA["$defs"][name]["properties"]) == {one.name for one in fields(kind)}
    assert SCHEMA["$defs"]["certificate"]["properties"]["version"] == {"const": VERSION}


def test_what_certify_writes_follows_the_schema_and_damage_does_not(tmp_path):
    files = {file.stem: str(file) for file in builtin_files()}
    files["masked_lanes_counted_triton"] = str(FAULTY / "masked_lanes_counted_triton.py")
    written = {}
    for name in ("rms_norm_triton", "masked_lanes_counted_triton"):  # one is certified, the other refused
        out = tmp_path / f"{name}.json"
        CliRunner().invoke(
            app, ["certify", files[name], "--shape", "2x5", "--dtype", "float32", "--json", str(out)]
        )
        written[name] = json.loads(out.read_text())
        assert problems(written[name]) == []
    assert "refused" in written["masked_lanes_counted_triton"]["certificates"][0]
    for key, wrong in (("version", 1), ("source", "x"), ("statement", None), ("more", 1)):
        damaged = copy.deepcopy(written["rms_norm_triton"])
        damaged["certificates"][0][key] = wrong
        assert problems(damaged), key
