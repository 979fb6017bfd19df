"""The Chromium that is installed, driven through playwright; none is downloaded."""

import os
import shutil
from contextlib import contextmanager

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


class NoChromiumError(Exception):
    """There is no browser to drive; the text says what is missing."""


@contextmanager
def chromium():
    """Start the browser.

    Raises:
        NoChromiumError: it or playwright is not installed.

    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoChromiumError("playwright is not installed") from None
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise NoChromiumError("there is no Chromium; Debian has it as chromium")
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=program, args=[*as_root, "--disable-dev-shm-usage"])
        yield browser
        browser.close()
