"""Scores of single predictions, with intervals over samples, in numpy: what runs kept is read, nothing is trained."""
