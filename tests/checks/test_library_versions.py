"""A defect of an older Liger-Kernel is found in that release and in no other, from one declaration."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from verifier.records import witness
from verifier.records.case import Case
from verifier.subjects.libraries import library_files
from verifier.subjects.load_file import load, load_subject

ROOT = Path(__file__).parents[2]
OLDER = os.environ.get("NORM_VERIFIER_OLDER_LIGER", "")
"""A folder into which `pip install --no-deps --target FOLDER liger-kernel==0.5.3` has put that release."""
LIGER = library_files()["liger"]


def witnesses(path):
    for subject in load(path).subjects:
        for defect in subject.known_defects:
            for dtype in defect.dtypes or subject.dtypes:
                yield subject, defect, dtype


@pytest.mark.parametrize("path", library_files().values(), ids=library_files())
def test_every_known_defect_of_a_library_has_its_witness(path):
    every = list(witnesses(path))
    for subject, defect, dtype in every:
        stored = witness.stored(subject, defect, dtype)
        assert stored is not None, f"{subject.name} {defect.id} {dtype}"
        case, document = witness.load(stored)
        assert isinstance(case, Case)
        assert defect.where is None or defect.where(case)
        assert document["versions"][load(path).library.distribution]


def test_the_witness_of_an_older_layer_norm_is_of_a_release_that_has_the_defect():
    subject = load_subject(LIGER, "liger_layer_norm")
    (defect,) = subject.known_defects
    _, document = witness.load(witness.stored(subject, defect, "float32"))
    assert document["versions"]["liger-kernel"] == "0.5.3"
    try:
        installed = tuple(map(int, version("liger-kernel").split(".")[:3]))
    except PackageNotFoundError:
        pytest.skip("liger-kernel is not installed (it comes with the extra dev)")
    assert defect.of_this_version == (installed < (0, 5, 4))


@pytest.mark.skipif(
    not (Path(OLDER) / "liger_kernel").is_dir() or not OLDER,
    reason="NORM_VERIFIER_OLDER_LIGER names no folder with liger-kernel 0.5.3 (tox installs it)",
)
def test_an_older_release_is_audited_from_the_same_declaration(tmp_path):
    command = (sys.executable, "-m", "verifier", "audit", "--library", "liger", "-k", "layer_norm or poly")
    options = ("--dtype=float32", "--check=forward_error", "--workers=1", "--json=told.json")
    ended = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), OLDER))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["versions"]["liger-kernel"] == "0.5.3"
    (finding,) = told["findings"]
    assert finding["expected"]
    assert finding["reason"].startswith("Lanes beyond the row count in the variance")
    (line,) = (one for one in told["lines"] if one["subject"] == "liger_layer_norm")
    assert line["counts"]["PASS"] > 5  # rows of a power of two are right
    (left_out,) = (one for one in told["lines"] if one["subject"] == "liger_poly_norm")
    assert left_out["skipped"] == (
        "liger-kernel 0.5.3 has no liger_kernel.ops.poly_norm.LigerPolyNormFunction"
    )
