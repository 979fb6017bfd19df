"""The two-pass variance under another name, with the same theorem."""

from verifier.bounds.variance import two_pass

NAME = "two_pass_again"
CENTRED = True
NONNEGATIVE = True
THEOREMS = two_pass.THEOREMS

bound = two_pass.bound
simulate = two_pass.simulate
