"""The machine that is in force."""

from __future__ import annotations


def current():
    return None
