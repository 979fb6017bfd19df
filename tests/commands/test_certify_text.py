"""What `certify` prints of a bound is no less than the bound, and says of which rows it is one."""

from verifier.commands.certify import _bound_lines
from verifier.records.certificate import RowBound, TheoremBound


def lines(**errors):
    row = RowBound(kappa=1.0, declared_variance=None, **errors)
    bound = TheoremBound(
        theorems=("T6",), format="float32", u=2.0**-24, depth=7, declared_depth=7, divide_by_n="division",
        mean_contraction="none", clamp=False, root=("sqrt.rn", "div.rn"), rows=(row,),
    )  # fmt: skip
    return "\n".join(_bound_lines(bound))


def test_a_printed_bound_is_rounded_up():
    told = lines(variance=7.7401e-07, rstd=0.028)
    assert "variance at most 7.75e-07, rstd at most 0.0281" in told
    assert "variance at most 1, " in lines(variance=0.99999, rstd=0.028)


def test_a_bound_is_said_of_the_rows_that_were_drawn_alone():
    """A row of kappa 1 with an element far off, or with squares that underflow, may err by more."""
    assert "some normal rows of kappa 1 and deviation 1 to 2" in lines(variance=1e-6, rstd=1e-6)
