"""Runs subjects in a process of their own, so that a crash, a hang or a stray write cannot hurt the verifier."""

from verifier.runner.process import Runner

__all__ = ["Runner"]
