"""What a project has set for its audits: the table `[tool.norm-verifier]` of its pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from verifier.audit.request import ALL_CONFIGURATIONS, CERTIFICATE, FIRST_CONFIGURATION, did_you_mean

TABLE = "norm-verifier"


class SettingsError(ValueError):
    """A pyproject.toml whose table cannot be used, with the path, the key and what is wrong."""


def project_settings(folder: Path) -> dict[str, object]:
    """Return the settings in the nearest pyproject.toml at or above a folder, by the audit's parameters.

    Paths are taken from the file's own folder. Without a file, or without the table, there are none.

    Raises:
        SettingsError: the file cannot be read, a key is unknown or a value has another type.

    """
    home = next((one for one in (folder, *folder.parents) if (one / "pyproject.toml").is_file()), None)
    return {} if home is None else _read(home / "pyproject.toml")


def _read(file: Path) -> dict[str, object]:
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file}: cannot be read: {error}") from error
    table = tools.get(TABLE, {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise SettingsError(f"{file}: tool.{TABLE} is no table")
    found: dict[str, object] = {}
    for key, value in table.items():
        if key not in _KEYS:
            named = f"{key!r}{did_you_mean(key, _KEYS)}; there are: {', '.join(_KEYS)}"
            raise SettingsError(f"{file}: [tool.{TABLE}] has no key {named}")
        parameter, wanted, fits = _KEYS[key]
        if not fits(value):
            raise SettingsError(f"{file}: [tool.{TABLE}] {key} is {value!r}, and {wanted} is wanted")
        found[parameter] = value
    return _as_given(found, file.parent)


def _as_given(found: Mapping[str, object], home: Path) -> dict[str, object]:
    """Return settings as the command line would have given them."""
    given = dict(found)
    for key in ("paths", "pythonpath"):
        paths = given.get(key)
        if isinstance(paths, list):
            given[key] = [str(home / path) for path in paths]
    shapes = given.get("certify")
    if isinstance(shapes, list):
        given["certify_shape"] = given.pop("certify")
    required = [f"{name}={given.pop(name)}" for name in _REQUIRED if name in given]
    required += [CERTIFICATE] if given.pop(CERTIFICATE, False) else []
    if required:
        given["require"] = required
    for key in ("baseline", "report_folder"):
        if key in given:
            given[key] = str(home / str(given[key]))
    return given


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_choice(value: object) -> bool:
    return isinstance(value, bool)


def _is_choice_or_texts(value: object) -> bool:
    return _is_choice(value) or _is_texts(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_REQUIRED = ("reach", "ulp", "kappa")
"""Keys that stand for a part of `--require`."""
_TEXTS, _TEXT, _COUNT = "a list of strings", "a string", "a whole number from 0"
_KEYS: Mapping[str, tuple[str, str, Callable[[object], bool]]] = {
    "paths": ("paths", _TEXTS, _is_texts),
    "pythonpath": ("pythonpath", _TEXTS, _is_texts),
    "dtypes": ("dtype", _TEXTS, _is_texts),
    "checks": ("check", _TEXTS, _is_texts),
    "subjects": ("subject", _TEXTS, _is_texts),
    "libraries": ("library", _TEXTS, _is_texts),
    "backend": ("backend", _TEXT, _is_text),
    "budget": ("budget", _TEXT, _is_text),
    "seed": ("seed", _COUNT, _is_count),
    "workers": ("workers", _COUNT, _is_count),
    "multiprocessors": ("multiprocessors", "a whole number from 0", _is_count),
    "autotune": ("autotune", '"all" or "first"', (ALL_CONFIGURATIONS, FIRST_CONFIGURATION).__contains__),
    "reach": ("reach", "a number from 0 to 1", _is_fraction),
    "ulp": ("ulp", "a number from 0", _is_number),
    "kappa": ("kappa", "a number from 0", _is_number),
    "certify": ("certify", "true, false or a list of shapes", _is_choice_or_texts),
    CERTIFICATE: (CERTIFICATE, "true or false", _is_choice),
    "release": ("release", "true or false", _is_choice),
    "baseline": ("baseline", _TEXT, _is_text),
    "report": ("report_folder", _TEXT, _is_text),
}
"""By key: the parameter of the command `audit`, what is wanted in words, and whether a value is that."""
