"""Results of formulas that are written on abstract numbers."""
