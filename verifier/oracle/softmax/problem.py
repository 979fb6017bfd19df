"""The problem of a softmax or of its logarithm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from verifier.arithmetic.abstract_number import Form, Terms, Value
from verifier.oracle.climb import Comparison, arb_rungs
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import Field, Rung, SoftmaxOperands, SoftmaxSolution
from verifier.oracle.softmax.rung_arb import SoftmaxArb
from verifier.oracle.softmax.solve import solve_softmax

ADDED, SCALE = "attn_bias", "scale"
"""Names, among the further terms of a form, of what is added to the scores and of their factor."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxProblem(SoftmaxOperands):
    """Rows whose softmax is taken, forward and backward."""

    @property
    def centred(self) -> bool:
        """True: the largest element is subtracted."""
        return True

    @property
    def weight(self) -> None:
        """None: a softmax has no weight."""

    @property
    def parameter(self) -> None:
        """None: a softmax has no weight."""

    @property
    def compares(self) -> bool:
        """True: the largest element is subtracted."""
        return True

    def solve(self, _rung: Rung = "auto", _bits: int | None = None, /) -> SoftmaxSolution:
        """Return the exact answer in double-double, whatever the rung; `rungs` climbs to Arb."""
        return solve_softmax(self)

    def rungs(self, name: str, first: Enclosure) -> Iterator[tuple[str, Comparison]]:
        """Yield the rungs: the first answer, Arb."""
        yield "double_double", lambda still: first[still]
        yield from arb_rungs(SoftmaxArb(self, name).values)

    def in_field(self, field: Field, form: Form) -> Mapping[str, Value]:
        """Run a form in a finite field; a given output is that of a raw backward op."""
        numbers, results = field.numbers(), {}
        x, gradient = field.take("input", self.input), field.take("grad_output", self.grad_output)
        terms = Terms(x=x, grad_output=gradient, further=self._of_scores(field))
        output = field.take("output", self.output)
        if self.input is not None:
            output = results["output"] = form.forward(numbers, terms)
            numbers.divides_by_sum(output)
        if gradient is not None:
            terms = replace(terms, output=output, x=output if x is None else x)
            results["grad_input"] = form.backward(numbers, terms)["grad_input"]
        return results

    def input_of(self, field: Field, scores: Value) -> Value:
        """Return the elements of the input, in a finite field, that have these scores."""
        further, found = self._of_scores(field), scores
        if ADDED in further:
            found = found - further[ADDED]
        return found / further[SCALE] if SCALE in further else found

    def _of_scores(self, field: Field) -> dict[str, Value]:
        """Return what makes scores of the input: its factor, and what is added."""
        found = {} if self.scale == 1.0 else {SCALE: field.scalar(self.scale)}
        if self.added is not None:
            found[ADDED] = field.take(ADDED, self.added)
        return found
