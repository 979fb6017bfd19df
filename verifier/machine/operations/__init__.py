"""Pure instructions: what each opcode computes, one family a file."""

from verifier.machine.operations.table import DTYPE, Operation, resolve

__all__ = ["DTYPE", "Operation", "resolve"]
