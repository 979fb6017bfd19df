"""Strategy for the dtypes of a kernel's tensors."""

from collections.abc import Sequence

from hypothesis import strategies as st

from strategies.formats import FLOAT_NAMES, dtype_name


def dtypes(*, allow: Sequence[str] = FLOAT_NAMES) -> st.SearchStrategy[str]:
    """Generate dtypes by torch's attribute names; shrinks towards the first that is allowed.

    Raises: ValueError if nothing is allowed, or a name is unknown; TypeError for a lone string.
    """
    if isinstance(allow, str):
        raise TypeError(f"allow takes several names, such as ({allow!r},), not one string")
    names = [dtype_name(name) for name in allow]
    if not names:
        raise ValueError("allow is empty: at least one dtype is needed")
    return st.sampled_from(names)
