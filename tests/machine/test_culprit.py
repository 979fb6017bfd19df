"""Whose an exception is: the innermost frame decides that is the subject's or the verifier's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

import verifier
from verifier.execution.backends.machine import BACKEND
from verifier.machine import LaunchError
from verifier.machine.culprit import _DOORS, is_own, passed_on, place

OURS = str(Path(verifier.__file__).with_name("machine") / "execute" / "wave.py")
DOOR = str(Path(verifier.__file__).with_name("subjects") / "cuda_source.py")
SHIPPED = str(Path(verifier.__file__).parent / "kernels" / "rms_norm_torch.py")
THEIRS = "/project/kernel.py"
PUBLISHED = str(Path(torch.__file__).parents[1] / "liger_kernel" / "ops" / "rms_norm.py")
TRANSLATED = "<machine:forward:3>"


def calling(*files, leaf="{}['x']"):
    """Return a function that calls through one frame of each file, outermost first, to what raises."""
    names = {"np": np, "torch": torch, "passed_on": passed_on, "LaunchError": LaunchError}
    function = None
    for depth, file in enumerate(reversed(files)):
        body = leaf if depth == 0 else "inner()"
        scope = {**names, "inner": function}
        exec(compile(f"def frame():\n    {body}\n", file, "exec"), scope)
        function = scope["frame"]
    return function


IN_NUMPY = "np.broadcast_shapes((2,), (3,))"
IN_TORCH = "torch.empty(2).view(3)"
SAID = "raise ValueError('two arguments')"


@pytest.mark.parametrize(
    ("files", "leaf", "own"),
    [
        ((THEIRS, OURS), "{}['x']", True),
        ((THEIRS, OURS), IN_NUMPY, True),
        ((OURS, THEIRS, OURS), IN_TORCH, True),
        ((THEIRS, OURS, TRANSLATED), "1 / 0", True),
        ((THEIRS, DOOR), "{}['x']", True),
        ((THEIRS, DOOR, OURS), SAID, True),
        ((OURS,), "raise KeyError('rcp')", True),
        ((OURS, THEIRS), "{}['x']", False),
        ((OURS, THEIRS), IN_NUMPY, False),
        ((OURS, PUBLISHED), "{}['x']", False),
        ((OURS, SHIPPED), "{}['x']", False),
        ((OURS, THEIRS, OURS), "passed_on(torch.empty, 'x')", False),
        ((OURS,), "passed_on(np.float32, 'x')", False),
        ((THEIRS, DOOR), SAID, False),
        ((THEIRS, OURS), "raise LaunchError('no such grid')", False),
        ((THEIRS,), IN_TORCH, False),
    ],
)
def test_the_innermost_frame_decides_that_is_the_subjects_or_ours(files, leaf, own):
    with pytest.raises(Exception) as caught:
        calling(*files, leaf=leaf)()
    assert is_own(caught.value) is own


def test_a_failure_of_an_extension_is_the_verifiers_and_that_of_its_kernels_is_theirs(monkeypatch):
    own, theirs = "/extension/verifier/checks/odd.py", "/extension/kernels/norm.py"
    failing = calling(OURS, own)
    with pytest.raises(KeyError) as caught:
        failing()
    assert not is_own(caught.value)
    monkeypatch.setenv("NORM_VERIFIER_EXTENSIONS", "/extension")
    for files, expected in (((OURS, own), True), ((OURS, theirs), False), ((THEIRS, own), True)):
        with pytest.raises(KeyError) as caught:
            calling(*files)()
        assert is_own(caught.value) is expected


IN_TORCH_PYTHON = str(Path(torch.__file__).parent / "cuda" / "__init__.py")
NO_DEVICE = "raise RuntimeError('No CUDA GPUs are available')"


@pytest.mark.parametrize(
    ("files", "leaf", "lacking"),
    [
        ((OURS, THEIRS, IN_TORCH_PYTHON), NO_DEVICE, True),
        ((OURS, THEIRS), "torch._C._cuda_of_another_build", True),
        ((OURS, THEIRS), NO_DEVICE, False),
        ((OURS, PUBLISHED), NO_DEVICE, False),
        ((OURS, THEIRS), "assert False, 'Torch not compiled with CUDA enabled'", False),
        ((OURS, THEIRS), "int('No CUDA GPUs are available')", False),
    ],
)
def test_the_machine_lacks_what_torch_asks_for_and_not_what_a_subject_says(files, leaf, lacking):
    with pytest.raises(Exception) as caught:
        calling(*files, leaf=leaf)()
    assert (BACKEND.lacks(caught.value) is not None) is lacking


def test_a_subject_that_passes_torchs_failure_on_lacks_the_device_too():
    torchs, own = calling(THEIRS, IN_TORCH_PYTHON, leaf=NO_DEVICE), calling(THEIRS, leaf=SAID)

    def subject():
        try:
            torchs()
        except RuntimeError:
            own()

    with pytest.raises(ValueError, match="two arguments") as caught:
        subject()
    assert "No CUDA GPUs are available" in BACKEND.lacks(caught.value)


def test_the_files_whose_functions_subjects_call_are_there():
    assert all(Path(door).is_file() for door in _DOORS)


def test_what_is_passed_on_may_fail_in_a_function_of_ours():
    def broken():
        calling(OURS)()

    with pytest.raises(KeyError) as caught:
        passed_on(broken)
    assert is_own(caught.value)
    assert place(caught.value) == f"frame, {OURS}:2"


def test_a_missing_argument_of_the_subject_is_its_own():
    def subject(input, weight):
        return input, weight

    with pytest.raises(TypeError) as caught:
        passed_on(subject, 1)
    assert not is_own(caught.value)


@pytest.mark.parametrize(("recurring", "own"), [(THEIRS, False), (PUBLISHED, False), (OURS, True)])
def test_an_endless_recursion_belongs_to_who_recurs_wherever_it_ends(recurring, own):
    """Each call goes through a library, and the innermost frame is ours."""
    again = "def again(depth):\n    return through(again, depth - 1) if depth else at_bottom()\n"
    through = "def through(function, depth):\n    return function(depth)\n"
    scope = {"at_bottom": calling(OURS, leaf="raise RecursionError('too deep')")}
    exec(compile(through, torch.__file__, "exec"), scope)
    exec(compile(again, recurring, "exec"), scope)
    with pytest.raises(RecursionError) as caught:
        scope["again"](50)
    assert is_own(caught.value) is own
