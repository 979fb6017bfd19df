"""Runs subjects in a process of their own: no crash, hang or stray write can hurt the verifier."""

from verifier.execution.child_process import Runner

__all__ = ["Runner"]
