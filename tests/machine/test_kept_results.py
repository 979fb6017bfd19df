"""What is kept on disk of a kernel is what would be made of it, and is made again where it is not sound."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from ptx_snippets import REGISTERS, STORE, kernel
from test_machine_goldens import recorded

from verifier.machine import Machine, kept_results, launch_ptx
from verifier.machine.ptx import parser
from verifier.machine.shadow.emitter_kind import EmitterKind
from verifier.machine.translate import compile_kernel
from verifier.machine.translate.compile_kernel import compiled

ROOT = Path(kept_results.__file__).parents[2]
KERNELS = sorted(
    {(one["ptx"], one["kernel"]) for one in recorded("triton")[0]["launches"]},
    key=lambda named: len(recorded("triton")[0]["ptx"][named[0]]),
)[:12]
"""PTX and name of the shortest that a device ran."""
PARTS = ("program", "emitted", "prologue", "sites", "used", "broken", "loops", "guards", "blocks")
HARMS = [lambda data: data[:-1], lambda data: data[:40] + b"x" + data[41:], lambda _: b""]
PARTED = kernel(
    f"mov.u32 %r0, 1; setp.lt.u32 %p1, %t, 5; @%p1 bra L; mov.u32 %r0, 2; L: {STORE}", 1, registers=REGISTERS
)
TEXT = kernel(f"add.u32 %r0, %t, 7; {STORE}", 1, registers=REGISTERS)


def forgotten():
    """Let this process know of no kernel any more."""
    parser.parsed.cache_clear()
    compiled.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_results, "_folder", [])
    kept_results.keep_results_in(tmp_path)
    forgotten()
    yield kept_results._folder[0]
    forgotten()


@pytest.fixture
def nothing_is_made(monkeypatch):
    """Return a function from whose call on translations, blocks and modules come from the disk alone."""

    def refuse(*_):
        raise AssertionError("made again")

    def begin():
        forgotten()
        monkeypatch.setattr(compile_kernel, "_translated", refuse)
        monkeypatch.setattr(compile_kernel.TranslatedKernel, "_compiled_block", refuse)
        monkeypatch.setattr(parser, "parse", refuse)

    return begin


def same(made, read):
    """Whether two constants of a translation do the same."""
    if isinstance(made, np.ndarray):
        return made.dtype == read.dtype and made.shape == read.shape and made.tobytes() == read.tobytes()
    return made is read or (type(made) is type(read) and made == read)


def launched(text=TEXT):
    result = torch.zeros(32, dtype=torch.int32)
    launch_ptx(text, "k", (1,), (32,), 0, [result], machine=Machine())
    return result.tolist()


@pytest.mark.parametrize("shadows", [None, EmitterKind.SLOTS, EmitterKind.TAINT, EmitterKind.GRAPH])
def test_a_translation_is_read_as_it_was_made(folder, nothing_is_made, shadows):
    texts = recorded("triton")[0]["ptx"]
    for text, name in KERNELS:
        forgotten()
        made = compiled(texts[text], name, "off", False, shadows)
        forgotten()
        read = compiled(texts[text], name, "off", False, shadows)
        assert read is not made
        for part in PARTS:
            assert getattr(read, part) == getattr(made, part), part
        assert len(read.blocks) == len(read.emitted.full)
        assert read.constants.keys() == made.constants.keys()
        assert all(same(made.constants[key], read.constants[key]) for key in made.constants)
    nothing_is_made()
    for text, name in KERNELS:
        assert compiled(texts[text], name, "off", False, shadows).program.module.text == texts[text]


def test_a_launch_from_the_disk_gives_the_same(folder, nothing_is_made):
    first = launched()
    nothing_is_made()
    assert launched() == first == [lane + 7 for lane in range(32)]


def test_blocks_for_some_lanes_are_kept_beside_when_lanes_have_parted(folder, nothing_is_made):
    def files():
        return {file: file.read_bytes() for file in folder.iterdir()}

    launched()
    before = len(files())
    assert launched(PARTED) == [1] * 5 + [2] * 27
    assert len(files()) == before + 3  # a module, its translation, and blocks for some lanes
    written = files()
    nothing_is_made()
    assert launched(PARTED) == [1] * 5 + [2] * 27
    assert files() == written


TRANSLATES = """
import hashlib, json, sys
from verifier.machine.shadow.emitter_kind import EmitterKind
from verifier.machine.translate.compile_kernel import compiled

for text, name in json.load(open(sys.argv[1])):
    for kind in (None, EmitterKind.GRAPH):
        made = compiled(text, name, "on", False, kind)
        print(name, hashlib.sha256(repr((made.emitted, sorted(made.constants))).encode()).hexdigest())
"""


def test_every_process_writes_the_same_translation(tmp_path):
    """Else a process would put blocks that another has kept beside names of its own."""
    of_triton = recorded("triton")[0]
    kernels = {(of_triton["ptx"][one["ptx"]], one["kernel"]) for one in of_triton["launches"]}
    # A function has a name in its translation.
    called = [named for named in sorted(kernels) if "shfl" in named[0]]
    (tmp_path / "kernels.json").write_text(json.dumps(called[:3] + called[-3:]))
    said = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", TRANSLATES, str(tmp_path / "kernels.json")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[0].count("\n") == 12


def test_several_processes_write_the_same_at_once(folder):
    """Each writes whole files; who reads meanwhile reads a whole one or none."""

    def launched_again_and_again(number):
        for _ in range(20):
            forgotten()
            for file in folder.iterdir() if number % 2 else ():
                file.unlink(missing_ok=True)
            assert launched(PARTED) == [1] * 5 + [2] * 27

    forks = []
    for number in range(6):
        forks.append(os.fork())
        if forks[-1] == 0:
            with suppress(BaseException):
                launched_again_and_again(number)
                os._exit(0)
            os._exit(1)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forks] == [0] * 6
    assert not [file.name for file in folder.iterdir() if file.name.startswith(".")]
    assert all(kept_results._read(file, lambda word: word) is not None for file in folder.iterdir())


def test_nothing_is_kept_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_results, "_folder", [])
    forgotten()
    launched()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_file_is_made_again(folder, harm):
    launched()
    for file in folder.iterdir():
        file.write_bytes(harm(file.read_bytes()))
    forgotten()
    assert launched() == [lane + 7 for lane in range(32)]
    forgotten()
    assert all(kept_results._read(file, lambda word: word) is not None for file in folder.iterdir())


def test_two_kernels_of_one_module_share_its_variables(folder):
    """Also where one translation comes from the disk and the other is made."""
    one, two = compiled(TEXT, "k", "off", False, None), compiled(TEXT, "k", "on", False, None)
    assert one.program.module is two.program.module
    forgotten()
    one, two = compiled(TEXT, "k", "off", False, None), compiled(TEXT, "k", "off", True, None)
    assert one.program.module is two.program.module
    assert one.program.module is parser.parsed(TEXT)


def test_every_part_of_the_question_tells(folder):
    one, other = TEXT, TEXT.replace("7;", "8;")
    assert launched(one) != launched(other)
    kinds = (None, EmitterKind.SLOTS, EmitterKind.TAINT, EmitterKind.FLAGS)
    asked = [("off", False, kind) for kind in kinds] + [("on", False, None), ("off", True, None)]
    before = len(list(folder.iterdir()))
    for question in asked:
        compiled(TEXT, "k", *question)
    assert len(list(folder.iterdir())) == before + len(asked) - 1  # ("off", False, None) was launched


def test_other_sources_see_nothing_of_it(folder, monkeypatch):
    launched()
    monkeypatch.setattr(kept_results, "_sources", lambda: "other")
    kept_results.keep_results_in(folder.parent)
    assert kept_results._folder == [folder.parent / "other"]
    assert list((folder.parent / "other").iterdir()) == []


def test_what_other_sources_left_long_ago_is_removed(folder):
    for name, age in (("old", 2 * kept_results.OTHERS_STAY), ("young", 0.0)):
        (folder.parent / name).mkdir()
        then = time.time() - age
        os.utime(folder.parent / name, (then, then))
    kept_results.keep_results_in(folder.parent)
    assert {one.name for one in folder.parent.iterdir()} == {"young", folder.name}


def test_the_oldest_of_too_many_are_removed(folder, monkeypatch):
    monkeypatch.setattr(kept_results, "MOST_KEPT", 3)
    for number in range(4):
        (folder / str(number)).write_bytes(b"")
        os.utime(folder / str(number), (number, number))
    kept_results.keep_results_in(folder.parent)
    assert {one.name for one in folder.iterdir()} == {"2", "3"}


def test_a_folder_that_cannot_be_made_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_results, "_folder", [])
    (tmp_path / "file").write_text("in the way")
    kept_results.keep_results_in(tmp_path / "file")
    forgotten()
    assert launched() == [lane + 7 for lane in range(32)]


def test_what_is_lacking_is_said_again_by_what_is_read(folder):
    """An error in a translation is not written: it is made again each time."""
    text = kernel(f"nosuch.b32 %r0, %t; {STORE}", 1, registers=REGISTERS)
    for _ in range(2):
        forgotten()
        with pytest.raises(Exception, match="nosuch"):
            launched(text)
