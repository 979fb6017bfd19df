"""Optional sanitizers: monitors that see every access of a launch."""

from verifier.machine.sanitizers.registry import make_monitors

__all__ = ["make_monitors"]
