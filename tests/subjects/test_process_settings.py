"""What a call sets for the whole process is seen and set back; what a right call does is not."""

import os
import random

import numpy as np
import pytest
import torch
from numpy.random import MT19937, PCG64, SFC64, Philox
from torch.utils._python_dispatch import TorchDispatchMode

from verifier.subjects.load_file import load_subjects
from verifier.subjects.process_settings import settings_kept

HELD = []


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def held(context):
    HELD.append(context)
    context.__enter__()


LEAVE = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "inference mode": lambda: held(torch.inference_mode()),
    "deterministic mode": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "autocast of cpu": lambda: held(torch.autocast("cpu")),
    "autocast dtype of cuda": lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "default device": lambda: torch.set_default_device("meta"),
    "modes in force": lambda: held(Mode()),
    "precision of float32 products": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "cuDNN's TF32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "cuDNN's benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "flushing of subnormal numbers": lambda: torch.set_flush_denormal(True),
    "NumPy's treatment of floating-point errors": lambda: np.seterr(all="raise"),
    "environment": lambda: os.environ.update(TRITON_DEBUG="1"),
    "working directory": lambda: os.chdir("/"),
    "seed": lambda: torch.manual_seed(0),
    "torch's random numbers": lambda: torch.rand(3),
    "Python's random numbers": random.random,
    "NumPy's random numbers": lambda: np.random.seed(0),  # noqa: NPY002
}


def seed_apart():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
    torch.rand(3, generator=torch.Generator().manual_seed(0))
    random.Random(0).random()
    np.random.default_rng(0).random()


def switch_inside():
    with torch.set_grad_enabled(False), torch.autocast("cpu"), torch.device("meta"), Mode():
        torch.empty(3)


KEEP = {
    "seed_apart": seed_apart,
    "switch_inside": switch_inside,
    "inductor": lambda: os.environ.update(TORCHINDUCTOR_CACHE_DIR="somewhere"),
}


@pytest.mark.parametrize("name", LEAVE)
def test_what_is_left_changed_is_said_and_set_back(name, monkeypatch):
    monkeypatch.setenv("TRITON_DEBUG", "0")
    numbers = torch.get_rng_state()
    others = random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    with settings_kept() as seen:
        LEAVE[name]()
    assert list(seen.changed) == [name]
    with settings_kept() as after:
        pass
    assert after.changed == {}
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (random.getstate(), np.random.get_state()[2]) == others  # noqa: NPY002
    assert os.environ["TRITON_DEBUG"] == "0"


@pytest.mark.parametrize("name", KEEP)
def test_what_right_kernels_do_is_no_change(name, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with settings_kept() as seen:
        KEEP[name]()
    assert seen.changed == {}
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)


def test_settings_are_set_back_after_an_error_too():
    with pytest.raises(KeyError), settings_kept():
        torch.set_default_dtype(torch.float64)
        raise KeyError
    assert torch.get_default_dtype() == torch.float32


def test_two_calls_draw_other_numbers():
    drawn = []
    for _ in range(2):
        with settings_kept():
            drawn.append(torch.rand(8))
    assert not torch.equal(*drawn)


def test_a_file_that_sets_something_while_it_is_loaded_leaves_the_verifier_alone(kernel_file):
    load_subjects(kernel_file("torch.set_default_dtype(torch.float64)\nused = subject(**DECLARED)(right)\n"))
    assert torch.get_default_dtype() == torch.float32


def test_variables_that_a_library_names_as_it_is_imported_are_no_fault_of_the_call(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    naming = "import os; os.environ.setdefault('NAMED_BY_A_LIBRARY', '1')"
    (tmp_path / "a_library_that_names.py").write_text(naming, encoding="utf-8")
    with settings_kept() as first:
        import a_library_that_names  # noqa: F401
    assert not first.changed
    assert "NAMED_BY_A_LIBRARY" not in os.environ
    with settings_kept() as second:  # nothing is imported any more: this is the call's own doing
        os.environ["NAMED_BY_A_LIBRARY"] = "1"
    assert "NAMED_BY_A_LIBRARY" in second.changed["environment"]


def test_a_variable_that_is_changed_is_told_whatever_is_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SET_BEFORE", "1")
    (tmp_path / "a_library_that_changes.py").write_text("import os; os.environ['SET_BEFORE'] = '2'", "utf-8")
    with settings_kept() as seen:
        import a_library_that_changes  # noqa: F401
    assert "SET_BEFORE" in seen.changed["environment"]
    assert os.environ["SET_BEFORE"] == "1"


DRAW = {
    "drawn": lambda: np.random.random(3),  # noqa: NPY002
    "exchanged": lambda: np.random.set_bit_generator(MT19937(1)),
}


@pytest.mark.parametrize("how", DRAW)
@pytest.mark.parametrize("kind", [PCG64, Philox, SFC64])
def test_numpys_numbers_from_any_source_are_watched_and_set_back(kind, how):
    source, usual = kind(3), np.random.get_bit_generator()
    np.random.set_bit_generator(source)
    try:
        drawn = kind(3).random_raw()
        with settings_kept() as seen:
            DRAW[how]()
        assert list(seen.changed) == ["NumPy's random numbers"]
        with settings_kept() as after:
            pass
        assert after.changed == {}
        assert np.random.get_bit_generator() is source
        assert source.random_raw() == drawn
    finally:
        np.random.set_bit_generator(usual)


NORMAL = {
    "a waiting normal number is drawn": np.random.standard_normal,
    "it is another": lambda: np.random.set_state(  # noqa: NPY002
        np.random.get_state(legacy=False) | {"gauss": 3.0}  # noqa: NPY002
    ),
    "it is taken away": lambda: np.random.set_state(  # noqa: NPY002
        np.random.get_state(legacy=False) | {"has_gauss": 0}  # noqa: NPY002
    ),
    "a number is drawn": np.random.random,
    "a number is drawn past NumPy's functions": lambda: np.random.get_bit_generator().random_raw(),
    "numbers are drawn to where they were before": lambda: [np.random.seed(7), np.random.random(2)],  # noqa: NPY002
}


@pytest.mark.parametrize("how", NORMAL)
def test_numpys_numbers_and_one_that_waits_are_watched_though_their_state_is_seldom_read(how, monkeypatch):
    np.random.seed(7)  # noqa: NPY002
    np.random.standard_normal()  # noqa: NPY002 - two are made at once
    before = np.random.get_state(legacy=False)  # noqa: NPY002
    assert before["has_gauss"] == 1
    for _ in range(2):
        with settings_kept() as seen:
            NORMAL[how]()
        assert list(seen.changed) == ["NumPy's random numbers"]
        after = np.random.get_state(legacy=False)  # noqa: NPY002
        assert np.array_equal(after["state"].pop("key"), before["state"]["key"])
        assert after["state"]["pos"] == before["state"]["pos"]
        assert (after["has_gauss"], after["gauss"]) == (1, before["gauss"])
    with settings_kept():
        pass
    monkeypatch.setattr(np.random, "get_state", None)  # it is read when it has changed alone
    with settings_kept() as seen:
        pass
    assert seen.changed == {}
