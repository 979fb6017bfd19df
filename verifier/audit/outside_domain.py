"""Where cases outside a declared domain are looked for: among hazards that leave it, if it is of values."""

from __future__ import annotations

from dataclasses import replace

from strategies.hazards import hazard_names
from strategies.values import Values
from verifier.audit import rules
from verifier.cases.plan import Plan
from verifier.cases.possible_choices import STRENGTHS
from verifier.cases.recipe import Recipe, build
from verifier.ops import op
from verifier.records.case import Case
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
    plain = _case(subject, dtype, Values())
    if plain is None:
        return None
    leaving = tuple(name for name in hazards if _leaves(subject, plain, name))
    return replace(plan, hazards=leaving) if leaving else None


def _of_values_alone(domain: Domain) -> bool:
    """Return whether it promises all extents, layouts, arguments, eps, and tensors of the input's dtype.

    In other dtypes than the input's there are no tensors in cases outside a domain.
    """
    promised = (domain.parameter_dtypes, domain.residual_dtypes)
    if not domain.optional or any(INPUT not in (named or (INPUT,)) for named in promised):
        return False
    rest = replace(domain, max_kappa=None, max_abs=None, parameter_dtypes=None, residual_dtypes=None)
    return replace(rest, required=Domain().required) == Domain()


def _leaves(subject: Subject, plain: Case, hazard: str) -> bool:
    """Return whether an input with this hazard lies outside at some strength.

    plain: a case of the subject, from which those with a hazard differ in numbers alone.
    """
    known = [_magnitudes(subject, plain, hazard, strength) for strength in STRENGTHS]
    found = (one for one in dict.fromkeys(known) if one is not None)
    return any(rules.outside(subject, replace(plain, kappa=kappa, largest=most)) for kappa, most in found)


def _case(subject: Subject, dtype: str, values: Values) -> Case | None:
    recipe = Recipe(rows=ROWS, columns=COLUMNS, input=values)
    return build(op(subject.op), subject, dtype, recipe, gradients=False)


_KNOWN: dict[tuple[object, ...], tuple[float, float] | None] = {}


def _magnitudes(subject: Subject, plain: Case, hazard: str, strength: int) -> tuple[float, float] | None:
    """Return kappa and the largest number of a case with a hazard, None if there is no such case.

    Where the input alone is normalized, they are those of the same rows for every op.
    """
    the_op = op(subject.op)
    alone = not the_op.own and the_op.normalized(plain.tensors, plain.scalars) is plain.tensors["input"]
    alike = (plain.rows, plain.columns) if alone else (subject.path, subject.name, subject.op)
    key = (*alike, plain.dtype, hazard, strength)
    if key not in _KNOWN:
        case = _case(subject, plain.dtype, Values(hazard=hazard, strength=strength))
        _KNOWN[key] = None if case is None else (case.kappa, case.largest)
    return _KNOWN[key]
