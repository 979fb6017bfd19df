"""Makes texts that come from subjects fit to be shown: nothing in them steers a terminal or floods it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

LINE: int = 1000
"""Characters of one line that are shown at most: a sentence with its numbers has a tenth of that."""
_WIDE = 4 * LINE
"""The same of a line in a text of several: a row of a table, a note."""
BLOCK: int = 20_000
"""Characters of a text of several lines that are kept at most: of a deep traceback, both ends."""
_LEFT_OUT = " ...({} characters left out)... "
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What terminals show as a colour or in bold: a compiler's message means the same without."""
_BREAKS = dict.fromkeys(map(ord, "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def line(text: str, limit: int = LINE) -> str:
    r"""Return text as one line of printable characters, shortened in its middle to `limit` characters.

    Line breaks become spaces, colours are dropped; other control characters, marks that turn the direction
    of writing, surrogates and the like become escapes such as \x1b. Applied twice it changes nothing more.
    """
    plain = _COLOURS.sub("", str(text))
    return _shortened(_escaped(_shortened(plain, limit).translate(_BREAKS)), limit)


def block(text: str, limit: int = BLOCK) -> str:
    """Return text of several lines, each made printable as by `line`, its middle left out beyond `limit`."""
    kept = _shortened(str(text), limit)
    return _shortened("\n".join(line(one, _WIDE) for one in kept.splitlines()), limit)


def text_of(error: BaseException) -> str:
    """Return the text of an exception as it is; one that cannot be had stops nothing."""
    try:
        return str(error)
    except Exception as another:
        return f"(no text: its __str__ raises {type(another).__name__})"


def said(error: BaseException, *, first_line: bool = False) -> str:
    """Return an exception as one line, "type: text", made printable by `line`."""
    text = f"{type(error).__name__}: {text_of(error).strip()}".strip()
    return line(text.splitlines()[0] if first_line else text)


def shell_word(path: str | Path) -> str:
    """Return a path as one word of a command line for a shell, whatever characters it has."""
    text = str(path)
    text = f"./{text}" if text.startswith("-") else text
    if text.isprintable():
        return shlex.quote(text)
    escaped = "".join(_in_quotes(c) for c in text)
    return f"$'{escaped}'"  # bash and zsh know the escapes; sh has no way to write such a name on one line


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    mark = _LEFT_OUT.format(len(text) - limit)
    room = max(limit - len(mark), 0)
    return text[: room - room // 3] + mark + text[len(text) - room // 3 :]


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _in_quotes(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
