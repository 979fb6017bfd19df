"""What the parts hand to each other: case, subject, observation, verdict."""
