"""What cannot be written costs nothing but itself, and a file is there whole or not at all."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from audited_kernels import KERNELS, QUICK
from campaigns import campaign
from full_disk import WORDS, full_disk
from small_cases import case_of

from verifier.commands.command_line import main
from verifier.records import case as cases
from verifier.records.files import read_bytes, replacing, write_text, write_together


@pytest.fixture
def file(kernel_file):
    return str(kernel_file(KERNELS))


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_that_cannot_be_written_stays_as_it_was_and_nothing_lies_beside_it(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("before")
    with full_disk(), pytest.raises(OSError, match=WORDS):
        write_text(path, "x" * 1000)
    assert (path.read_text(), names(tmp_path)) == ("before", ["r.json"])
    write_text(path, "after")
    assert (path.read_text(), names(tmp_path)) == ("after", ["r.json"])


def test_of_files_that_belong_together_none_is_put_in_place_if_one_fails(tmp_path):
    with full_disk(), pytest.raises(OSError, match=WORDS):
        write_together({tmp_path / "a": b"short", tmp_path / "b": bytes(1000)})
    assert names(tmp_path) == []
    case = case_of(torch.randn(512, 1024))
    with full_disk(), pytest.raises(OSError, match=WORDS):
        cases.save(case, tmp_path / "c.json")
    assert names(tmp_path) == []
    cases.save(case, tmp_path / "c.json")
    assert names(tmp_path) == ["c.input.bin", "c.json"]


def test_a_link_keeps_pointing_to_its_file_and_permissions_are_the_usual_ones(tmp_path):
    (tmp_path / "there").write_text("before")
    (tmp_path / "link").symlink_to("there")
    write_text(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "after"
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_device_is_written_and_not_replaced(tmp_path):
    write_text(Path("/dev/null"), "x")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    os.mkfifo(tmp_path / "pipe")
    with replacing(tmp_path / "pipe") as part:
        assert part == tmp_path / "pipe"


def test_no_more_is_read_than_belongs_there(tmp_path):
    (tmp_path / "file").write_bytes(bytes(100))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    assert read_bytes(tmp_path / "file", 100) == bytes(100)
    for name, said in (("file", "has 100 bytes"), ("pipe", "a pipe"), ("loop", "symbolic links")):
        with pytest.raises(OSError, match=said):
            read_bytes(tmp_path / name, 99)
    with pytest.raises(OSError, match="a device"):
        read_bytes(Path("/dev/zero"), 99)


def test_a_finding_that_cannot_be_saved_is_told_with_all_others_and_ends_in_status_2(command, file, tmp_path):
    with full_disk():
        status, out, error = command("audit", file, *QUICK, "--json", "r.json", "--findings", "kept")
    assert status == 2
    assert error == f"norm-verifier: could not be written: a case in kept: {WORDS}; r.json: {WORDS}\n"
    assert "FAIL  wrong  forward_error  float32" in out
    assert f"replay       not possible: the case could not be written: kept: {WORDS}" in out
    assert "1 unexpected finding" in out
    assert names(tmp_path / "kept") == [".gitignore"]
    assert not (tmp_path / "r.json").exists()


def test_the_report_is_written_though_a_finding_cannot_be(command, file, tmp_path, monkeypatch):
    from verifier.audit import save

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", "kept")

    monkeypatch.setattr(save.cases, "save", refuse)
    status, _, error = command("audit", file, *QUICK, "--json", "r.json", "--findings", "kept")
    assert (status, error.count("\n")) == (2, 1)
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["status"] == 2
    assert [(f["case"], f["unwritten"]) for f in report["findings"]] == [("", "kept: Permission denied")]
    assert {line["subject"] for line in report["lines"]} >= {"good", "wrong"}


def test_a_search_goes_on_where_a_finding_cannot_be_saved(no_child, file, tmp_path):
    from verifier.audit.run_audit import select

    jobs = select([Path(file)], check_names=["forward_error"], subjects=["good", "wrong"])
    with full_disk():
        report, listening = campaign(file, tmp_path / "kept", jobs=jobs)
    assert report.status == 2
    assert {line.subject for line in report.lines} == {"good", "wrong"}
    assert [WORDS in finding.unwritten for finding in listening.told] == [True]
    (text,) = [text for text in listening.said if "cannot be written" in text]
    assert WORDS in text
    assert text.endswith("this campaign cannot be resumed once it is stopped")


@pytest.mark.parametrize("name", ["p.png", "p.svg"])
def test_a_plot_that_cannot_be_drawn_leaves_nothing(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["norm-verifier", "bounds", "-N", "8", "--plot", str(tmp_path / name)])
    with full_disk(), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert WORDS in capsys.readouterr().err
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["../../outside", "a/b", "x" * 300, "é\u202e\x1b[31m"])
def test_a_subject_may_be_called_anything_and_its_cases_stay_in_their_folder(name, tmp_path):
    from verifier.audit.save import file_name

    made = file_name(name)
    assert "/" not in made
    assert not made.startswith(".")
    assert len(f"{made}-0a1b2c.weight.bin".encode()) < 255
    assert made.isprintable()
    assert made != file_name(name + "_")
