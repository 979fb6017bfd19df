"""Monitors that see every access: races, values never written, writes outside of outputs.

A module of this folder is a sanitizer when it defines `SANITIZES`, the names in `Machine.sanitize` that it
answers to, and `monitor(machine, *, replicated) -> Monitor | None` (see `registry.py`).
Being in the folder is the registration.
"""
