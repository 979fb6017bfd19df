"""Proved bounds on the rounding errors of declared algorithms."""
