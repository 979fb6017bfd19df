"""Formats of numbers, rounding, trees of sums, and arithmetic that makes no error."""
