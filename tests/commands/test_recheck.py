"""Certificates are held against the kernel: a forged one and a changed kernel are told."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from typer.testing import CliRunner

from verifier.commands.command_line import app
from verifier.commands.recheck import differences
from verifier.commands.recheck import told as told_of

FAULTY = Path(__file__).parents[1] / "faulty_kernels" / "variance_off_by_one_ulp_triton.py"
BUG = "    variance *= 1.00000011920928955078125  # the bug\n"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certified")
    kernel = folder / "kernel.py"
    kernel.write_text(FAULTY.read_text(encoding="utf-8").replace(BUG, ""), encoding="utf-8")
    answer = run("certify", kernel, "--shape", "2x33", "--dtype", "float32", "--json", folder / "c.json")
    assert answer.exit_code == 0, answer.output
    return kernel, folder / "c.json"


def test_a_certificate_holds_on_other_data(certificate):
    answer = run("recheck", certificate[1], certificate[0])
    assert answer.exit_code == 0, answer.output
    assert "holds" in answer.output


def test_the_kernel_of_that_name_beside_a_certificate_is_found(certificate, tmp_path):
    _, file = certificate
    beside = file.with_name("kernel.json")
    beside.write_bytes(file.read_bytes())
    answer = run("recheck", beside)
    assert answer.exit_code == 0, answer.output
    assert "holds" in answer.output
    alone = tmp_path / "kernel.json"
    alone.write_bytes(file.read_bytes())
    answer = run("recheck", alone)
    assert answer.exit_code == 2
    assert "no such file" in answer.output


def test_each_forged_entry_is_told(certificate, tmp_path):
    kernel, file = certificate
    document = json.loads(file.read_text(encoding="utf-8"))
    (one,) = document["certificates"]
    name = next(iter(one["proofs"][0]["kernels"]))
    one["proofs"][0]["kernels"][name] = "0" * 64
    one["proofs"][1]["expressions"] = "0" * 64
    one["tensors"]["input"]["strides"] = [1, 1]
    one["proofs"][0]["sums"][0]["orders"][0]["sha256"] = "0" * 64
    one["scalars"]["eps"] = 0.5
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(document), encoding="utf-8")
    answer = run("recheck", forged, kernel)
    assert answer.exit_code == 1
    for place in (f"kernels.{name}", "proofs[1].expressions", "tensors.input.strides", "scalars.eps"):
        assert place in answer.output
    assert "proofs[0].sums[0].orders[0].sha256" in answer.output


@pytest.mark.parametrize(
    ("old", "new", "status", "told"),
    [
        ("    rstd =", "    variance *= 1.00000011920928955078125\n    rstd =", 3, "refused now"),
        ("    tl.store(y", "    out += 0.0\n    tl.store(y", 1, "proofs[0].expressions"),
    ],
)
def test_a_changed_kernel_is_told(certificate, tmp_path, old, new, status, told):  # noqa: PLR0917 (a table)
    kernel, file = certificate
    changed = tmp_path / "kernel.py"
    shutil.copy(kernel, changed)
    text = changed.read_text(encoding="utf-8")
    assert old in text
    changed.write_text(text.replace(old, new), encoding="utf-8")
    answer = run("recheck", file, changed)
    assert answer.exit_code == status, answer.output
    assert told in answer.output


def test_what_a_file_says_of_rows_that_are_alike_is_shown_again(certificate, tmp_path):
    kernel, file = certificate[0], tmp_path / "rows.json"
    answer = run("certify", kernel, "--shape", "1..3x33", "--dtype", "float32", "--json", file)
    assert answer.exit_code == 0, answer.output
    assert run("recheck", file, kernel).exit_code == 0
    document = json.loads(file.read_text(encoding="utf-8"))
    (claim,) = document["rows_alike"]
    claim["rows"] = [1, 2, 3, 4]
    file.write_text(json.dumps(document), encoding="utf-8")
    answer = run("recheck", file, kernel)
    assert (answer.exit_code, "is certified, and not found" in answer.output) == (1, True), answer.output


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"certificates": [{"subject": 3}]}',
        '{"certificates": []}',
        '{"certificates": [], "rows_alike": 3}',
    ],
)
def test_a_damaged_file_is_wrong_usage(tmp_path, text):
    damaged = tmp_path / "damaged.json"
    damaged.write_text(text, encoding="utf-8")
    assert run("recheck", damaged, FAULTY).exit_code == 2


def test_alignments_that_the_allocator_gives_are_a_note():
    def laid(alignment):
        return {"tensors": {"input": {"alignment": alignment}}}

    assert told_of(laid(64), laid(256))[0] == []
    assert len(told_of(laid(64), laid(256))[1]) == 1
    for other in (16, 1000, 4096):  # the last two are recorded nowhere
        assert len(told_of(laid(other), laid(256))[0]) == 1
    named = {"tensors.input.alignment": 64}  # a name, and no place
    assert len(told_of(named, {"tensors.input.alignment": 256})[0]) == 1


def test_what_is_missing_is_a_difference():
    (found,) = differences({"a": [1, {"b": 2}]}, {"a": [1, {}]})
    assert str(found) == "a[1].b: 2 is certified, None is found"
    assert list(differences({"a": [1]}, {"a": [1, 2]}))
    assert not list(differences({"a": [1.5]}, {"a": [1.5]}))
    assert list(differences({"a": 1}, {"a": True}))


def test_a_certificate_is_not_passed_over_because_it_says_that_it_is_a_refusal(certificate, tmp_path):
    kernel, file = certificate
    document = json.loads(file.read_text(encoding="utf-8"))
    (one,) = document["certificates"]
    document["certificates"].append({**one, "statement": "nothing true", "refused": None})
    forged = tmp_path / "forged.json"
    forged.write_text(json.dumps(document), encoding="utf-8")
    answer = run("recheck", forged, kernel)
    assert (answer.exit_code, "a refusal that states something" in answer.output) == (2, True), answer.output


def test_what_a_reader_might_take_and_recheck_does_not_is_wrong_usage(certificate, tmp_path):
    kernel, file = certificate
    text, forged = file.read_text(encoding="utf-8"), tmp_path / "forged.json"
    twice = text.replace('"statement":', '"statement": "nothing true", "statement":', 1)
    beside = text.replace("{", '{"every_width": ["certified"],', 1)
    for changed, why in ((twice, "says 'statement' twice"), (beside, "has every_width, which no file")):
        forged.write_text(changed, encoding="utf-8")
        answer = run("recheck", forged, kernel)
        assert (answer.exit_code, why in " ".join(answer.output.split())) == (2, True), answer.output


def test_each_shape_of_a_range_has_a_document_and_refusals_are_listed(tmp_path):
    file = tmp_path / "range.json"
    answer = run("certify", FAULTY, "--shape", "2x2..3", "--dtype", "float32", "--json", file)
    assert answer.exit_code == 3
    assert "0 of 2 certified" in answer.output
    assert "refused  variance_off_by_one_ulp_triton  float32  2x3" in answer.output
    documents = json.loads(file.read_text(encoding="utf-8"))["certificates"]
    assert [(one["columns"], "refused" in one) for one in documents] == [(2, True), (3, True)]
