"""Shows results: on a terminal, as plain lines, as JSON."""
