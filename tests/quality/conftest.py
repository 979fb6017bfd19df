"""Lets tests of quality run checks in this process, as the tests of checks do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))
