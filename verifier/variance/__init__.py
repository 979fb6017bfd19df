"""variance of the verifier."""
