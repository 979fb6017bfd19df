"""What may be asked of an audit: budgets, times, required reach, names; importing it costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

BUDGETS = {"smoke": 4, "quick": 25, "standard": 200, "deep": 2000}
"""Cases per subject, check and dtype; checks that hardly look at the numbers take a share (`Plan.share`).

smoke has no dry runs and no shapes that are chosen by what they reach: it asks every check, but of the first
cases alone.
"""


ALL_CONFIGURATIONS, FIRST_CONFIGURATION = "all", "first"
"""Which configurations of autotuned kernels run: each once on small cases, or the first that fits alone."""


class SelectionError(ValueError):
    """What was asked for does not exist or leaves nothing to run."""


def must_be_known(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Reject names that are none of the known ones.

    Raises:
        SelectionError: one is not known; it says which one may be meant, and all that there are.

    """
    for name in names:
        if name not in known:
            meant = did_you_mean(name, known)
            raise SelectionError(f"no {kind} {name!r}{meant}; there are: {', '.join(known)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question after the name that is most alike, to be put behind a text; or nothing."""
    alike = get_close_matches(name, list(known), n=1)
    return f" (did you mean {alike[0]}?)" if alike else ""


def must_be_budget(budget: str) -> None:
    """Reject what is neither the name of a budget nor a time.

    Raises:
        SelectionError: as `parse_seconds`.

    """
    if budget not in BUDGETS:
        parse_seconds(budget)


def parse_seconds(budget: str) -> float:
    """Return the seconds that a budget like "90", "60s", "5m" or "1h" means.

    Raises:
        SelectionError: it is none of these, and no named budget.

    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (budget[:-1], budget[-1]) if budget and budget[-1] in units else (budget, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        raise SelectionError(
            f"budget {budget!r} is neither {', '.join(BUDGETS)} nor a time such as 60s"
            f"{did_you_mean(budget, BUDGETS)}"
        ) from None
    if not 0 < seconds < 1e7:
        raise SelectionError(f"budget {budget!r} must be a positive time")
    return seconds


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What an audit must show besides having no unexpected finding; None: it is not required.

    reach: a fraction of each subject's functions and loops. ulp: the largest error at the row's scale, of
    every output and dtype, up to `kappa` = |mean| / std (None: 0, ordinary data). certificate: of every
    subject and dtype, at each shape at which certificates are asked for, of each kind of call.
    """

    reach: float | None = None
    ulp: float | None = None
    kappa: float | None = None
    certificate: bool = False


CERTIFICATE = "certificate"
_REQUIRED = {"reach": (0.0, 1.0), "ulp": (0.0, float("inf")), "kappa": (0.0, float("inf"))}
"""The least and largest number that may be required of each."""


def parse_requirements(texts: Sequence[str]) -> Requirements:
    """Return what texts such as "reach=0.95" or "ulp=1.0,kappa=1e4" require; of each, the last one counts.

    Raises:
        SelectionError: one is no such text, or a kappa stands without the error that is allowed up to it.

    """
    found: dict[str, float] = {}
    every = [part.strip() for given in texts for part in given.split(",")]
    for text in every:
        if text == CERTIFICATE:
            continue
        name, _, value = text.partition("=")
        low, high = _REQUIRED.get(name, (1.0, 0.0))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not low <= number <= high or number == float("inf"):
            raise SelectionError(
                f"--require {text!r}: what can be required is reach=FRACTION from 0 to 1, "
                "ulp=LARGEST ERROR and kappa=UP TO WHERE, and certificate"
            )
        found[name] = number
    if "kappa" in found and "ulp" not in found:
        raise SelectionError("--require kappa=...: it says up to where ulp=... is required, which is missing")
    return Requirements(**found, certificate=CERTIFICATE in every)
