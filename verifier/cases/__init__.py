"""Which cases a check tries, and how each is built."""
