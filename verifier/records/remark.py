"""A sentence about a subject, with whose name it is."""

from __future__ import annotations

from typing import NamedTuple


class Remark(NamedTuple):
    """What is required of a subject and not so, or got worse; the text says it with the subject's name."""

    subject: str
    text: str
