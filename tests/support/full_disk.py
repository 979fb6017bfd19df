"""A disk that is full, for this process: nothing longer than a few bytes can be written."""

import resource
from contextlib import contextmanager

WORDS = "File too large"


@contextmanager
def full_disk():
    """Let every write fail that makes a file longer than 64 bytes; so much of it is written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
