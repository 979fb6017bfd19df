"""Names places in sources by files in the folder of the subject's own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from verifier.records.compiled_code import CompiledCode

_ABSOLUTE = re.compile(r"/[^\s:,()'\"<>]+/([^\s:,()'\"<>/]+\.(?:py|cu|cuh))\b")


def near_subject(text: str, path: Path) -> str:
    """Return the text with absolute paths cut to the file's name where the folder of `path` has such a file.

    Compiled code names sources by their whole path; a reader of the report knows the folder.
    """
    folder = path.parent
    return _ABSOLUTE.sub(lambda found: found[1] if (folder / found[1]).is_file() else found[0], text)


def code_near_subject(code: CompiledCode, path: Path) -> CompiledCode:
    """Return what is known of compiled code with its places named by `near_subject`, each once."""

    def named(places: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(near_subject(place, path) for place in places))

    return replace(
        code,
        half_sums=named(code.half_sums),
        half_places=named(code.half_places),
        atomics=named(code.atomics),
    )
