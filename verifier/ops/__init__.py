"""ops of the verifier."""
