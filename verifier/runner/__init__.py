"""Runs subjects in a process of their own: no crash, hang or stray write can hurt the verifier."""

from verifier.runner.process import Runner

__all__ = ["Runner"]
