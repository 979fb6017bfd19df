"""How tensors become rows, and bounds over rows."""
