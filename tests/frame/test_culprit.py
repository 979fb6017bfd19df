"""Whose an exception is: the innermost frame decides that is the subject's or the verifier's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

import verifier
from verifier.culprit import is_own, passed_on, place
from verifier.machine import LaunchError

OURS = str(Path(verifier.__file__).with_name("machine") / "wave.py")
DOOR = str(Path(verifier.__file__).with_name("cuda_source.py"))
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
