"""Fuzzing: units of work that any process may run, what they teach, and the campaign that hands them out."""
