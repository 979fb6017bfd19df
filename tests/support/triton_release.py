"""Which release of Triton is installed, for tests of what it compiles.

Where releases differ a test says so: it expects of each what that release makes (`since`), or is skipped with
what it supposes (`supposes_triton`).
"""

from __future__ import annotations

from importlib import metadata

import pytest
from packaging.version import Version


def since(release: str) -> bool:
    """Whether the installed Triton is of this release or a later one."""
    try:
        return Version(metadata.version("triton")) >= Version(release)
    except metadata.PackageNotFoundError:
        return False


def supposes_triton(release: str, why: str) -> pytest.MarkDecorator:
    """Mark what holds of the code of this release of Triton and of later ones; why: what older ones do."""
    return pytest.mark.skipif(not since(release), reason=f"supposes Triton {release}: before, {why}")


ALL_LANES_STORE = since("3.8")
"""All lanes that hold the same part of a sum store it for other warps, and each lane sums the parts. Before
Triton 3.8 the first lane of a warp stores its part, and the first of a block the sum, which all then read."""
