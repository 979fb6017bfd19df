"""Where cases outside a declared domain are looked for: among hazards that leave it, if it is of values."""

from __future__ import annotations

from dataclasses import replace

from strategies.hazards import hazard_names
from strategies.values import Values
from verifier.audit import rules
from verifier.cases.fixed_list import STRENGTHS
from verifier.cases.plan import Plan
from verifier.cases.recipe import Recipe, build
from verifier.ops import op
from verifier.records.subject import INPUT, Domain, Subject

ROWS, COLUMNS = 3, 33
"""Extents of the cases by which it is told whether a hazard leaves a domain."""


def plan_outside(subject: Subject, dtype: str, plan: Plan) -> Plan | None:
    """Return the plan in which to look for cases outside the domain of a subject, None if it has none.

    Most hazards stay inside what a domain says of values: to build their cases in the search for one that
    does not is in vain.
    """
    if subject.domain is None:
        return None
    if not _of_values_alone(subject.domain):
        return plan
    hazards = plan.hazards or hazard_names(finite_only=True)
    leaving = tuple(name for name in hazards if _leaves(subject, dtype, name))
    return replace(plan, hazards=leaving) if leaving else None


def _of_values_alone(domain: Domain) -> bool:
    """Return whether it promises all extents, layouts, arguments, eps, and parameters of the input's dtype.

    In other dtypes than the input's there are no parameters in cases outside a domain.
    """
    if not domain.optional or INPUT not in (domain.parameter_dtypes or (INPUT,)):
        return False
    rest = replace(domain, max_kappa=None, max_abs=None, parameter_dtypes=None)
    return replace(rest, required=Domain().required) == Domain()


_KNOWN: dict[tuple[object, ...], bool] = {}


def _leaves(subject: Subject, dtype: str, hazard: str) -> bool:
    """Return whether an input with this hazard lies outside at some strength."""
    key = (subject.path, subject.name, subject.op, subject.domain, dtype, hazard)
    if key not in _KNOWN:
        _KNOWN[key] = any(_is_outside(subject, dtype, hazard, strength) for strength in reversed(STRENGTHS))
    return _KNOWN[key]


def _is_outside(subject: Subject, dtype: str, hazard: str, strength: int) -> bool:
    recipe = Recipe(rows=ROWS, columns=COLUMNS, input=Values(hazard=hazard, strength=strength))
    case = build(op(subject.op), subject, dtype, recipe, gradients=False)
    return case is not None and rules.outside(subject, case)
