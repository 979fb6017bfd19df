"""Fusion."""
def contract(program):
    return program
