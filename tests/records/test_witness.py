"""Witnesses come back from a subject's file as they went in, or it is said what is wrong with the file."""

import json
from pathlib import Path

import pytest
import torch

from verifier.audit.replay import replay
from verifier.records import case as cases
from verifier.records import witness
from verifier.records.case import Case, CaseError
from verifier.records.subject import KnownDefect

BODY = """
@subject(
    **{
        **DECLARED,
        "known_defects": (
            KnownDefect(id="long-rows", check="forward_error", reason="long rows are scaled"),
            KnownDefect(id="long-rows", check="gradient", reason="long rows are scaled"),
            KnownDefect(check="finite", reason="nobody named it"),
            KnownDefect(check="memory", reason="kept apart", witness="apart-{dtype}.json"),
        ),
    }
)
def kernel(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * (1.5 if input.shape[-1] > 2 else 1.0)
"""


def document_of(subject, check, columns=3):
    case = Case(
        op="layer_norm",
        dtype="float32",
        tensors={"input": torch.arange(2.0 * columns).reshape(2, columns), "weight": None, "bias": None},
        scalars={"eps": 1e-5, "normalized_shape": (columns,)},
        rows=2,
        columns=columns,
    )
    return cases.to_document(case) | {
        "subject": {"path": f"../{subject.path.name}", "name": subject.name},
        "check": check,
        "backend": "eager",
        "failure": "FAIL|output|",
        "versions": {"python": "3"},
    }


@pytest.fixture
def subject(subjects_of):
    return subjects_of(BODY)["kernel"]


@pytest.fixture
def written(subject):
    """The documents of both named defects, as they were written."""
    documents = {
        witness.name_of(defect, "float32"): document_of(subject, defect.check)
        for defect in subject.known_defects[:2]
    }
    witness.write(witness.file_of(subject), documents)
    return documents


def test_documents_come_back_as_they_were_and_share_what_is_equal(subject, written):
    file = witness.file_of(subject)
    assert witness.read(file) == written
    assert list(witness.read(file)) == ["long-rows.forward_error.float32", "long-rows.gradient.float32"]
    whole = json.loads(file.read_text())
    assert len(whole["tensors"]) == len(whole["versions"]) == 1


@pytest.mark.usefixtures("written")
def test_a_witness_is_found_by_the_name_of_its_defect(subject):
    named, _, nameless, apart = subject.known_defects
    path = witness.stored(subject, named, "float32")
    assert path.name == "kernel.json#long-rows.forward_error.float32"
    case, document = witness.load(path)
    assert (case.columns, document["check"]) == (3, "forward_error")
    assert witness.stored(subject, named, "float64") is None
    assert witness.stored(subject, nameless, "float32") is None
    assert witness.stored(subject, apart, "float32") is None


def test_a_case_file_of_its_own_is_a_witness_too(subject):
    apart = subject.known_defects[-1]
    file = subject.path.with_name("apart-float32.json")
    file.write_text(json.dumps(document_of(subject, "memory")))
    assert witness.stored(subject, apart, "float32") == file
    assert witness.load(file)[1]["check"] == "memory"


@pytest.mark.usefixtures("written", "no_child")
def test_a_witness_is_replayed_by_its_path(subject):
    path = witness.stored(subject, subject.known_defects[0], "float32")
    text, status = replay(path)
    assert status == 1
    assert "kernel  forward_error  float32  on eager" in text


@pytest.mark.usefixtures("written")
def test_what_is_no_witness_is_said(subject):
    file = witness.file_of(subject)
    with pytest.raises(CaseError, match="no such witness; there are long-rows"):
        witness.load(Path(f"{file}#another"))
    with pytest.raises(CaseError, match="cannot be read"):
        witness.load(Path(f"{file.with_name('absent.json')}#another"))


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole.pop("witnesses"),
        lambda whole: whole["tensors"].clear(),
        lambda whole: whole["versions"].clear(),
        lambda whole: whole.update(witnesses=[]),
        lambda whole: whole["witnesses"].update({"long-rows.forward_error.float32": 3}),
    ],
)
@pytest.mark.usefixtures("written")
def test_a_damaged_file_is_told_from_a_missing_witness(subject, change):
    file = witness.file_of(subject)
    whole = json.loads(file.read_text())
    change(whole)
    file.write_text(json.dumps(whole))
    with pytest.raises(CaseError, match="not a file of witnesses"):
        witness.stored(subject, subject.known_defects[0], "float32")


@pytest.mark.parametrize("name", ["Long", "long rows", "long_rows", "-long", "a.b", "a#b"])
def test_the_name_of_a_defect_is_one_word(name, subjects_of):
    with pytest.raises(Exception, match="small letters, digits and hyphens"):
        subjects_of(BODY.replace("long-rows", name))


def test_a_check_has_one_defect_of_a_name(subjects_of):
    with pytest.raises(Exception, match="two known defects of gradient have the id 'long-rows'"):
        subjects_of(BODY.replace('check="forward_error"', 'check="gradient"'))


def test_a_name_is_optional():
    assert not KnownDefect(check="gradient", reason="so it is").id
