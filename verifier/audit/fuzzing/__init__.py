"""Fuzzing: batches of cases for any process, what they teach, and the campaign that hands them out."""
