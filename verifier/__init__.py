"""Demands: whether a normalization kernel is right, proved by rounding-error bounds."""

__version__ = "0.1.0"
