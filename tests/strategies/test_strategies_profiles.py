"""The Hypothesis profiles, and that importing anything here registers and decides nothing."""

import os
import subprocess
import sys

from hypothesis import settings

from strategies.profiles import register_profiles


def in_a_fresh_process(code):
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()


def test_the_profiles_differ_in_cases_and_only_ci_is_derandomised():
    register_profiles()
    ours = {name: settings.get_profile(name) for name in ("dev", "ci", "deep")}
    assert [ours[name].max_examples for name in ours] == [25, 200, 2000]
    assert [ours[name].derandomize for name in ours] == [False, True, False]
    assert [ours[name].deadline for name in ours] == [None] * 3
    assert ours["ci"].database is None
    assert ours["dev"].database is not None


def test_registering_twice_changes_nothing():
    register_profiles()
    first = repr(settings.get_profile("ci"))
    register_profiles()
    assert repr(settings.get_profile("ci")) == first


def test_importing_registers_no_profile_loads_no_hazard_and_nothing_of_the_verifier():
    code = (
        "import sys, importlib, pkgutil\n"
        "import strategies.profiles, strategies.values, strategies.layouts, strategies.reduce\n"
        "from hypothesis import settings\n"
        "loaded = [name for name in sys.modules if name.startswith('strategies.hazards.')]\n"
        "print('deep' in settings._profiles, bool(loaded))\n"
        "found = [one.name for one in pkgutil.walk_packages(strategies.__path__, 'strategies.')]\n"
        "for name in found: importlib.import_module(name)\n"
        "print('strategies.hazards.plain' in found, 'verifier' in sys.modules, 'kernels' in sys.modules)"
    )
    assert in_a_fresh_process(code) == ["False", "False", "True", "False", "False"]
