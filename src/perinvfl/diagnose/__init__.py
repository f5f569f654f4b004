"""What each client's model leans on, and what that may cost: measured from a run's own models and data.

`measures` are pure functions of predictions, `columns` looks for shortcut columns of a table, `diagnosis` puts the
numbers of a run together, `words` says each in a sentence.
"""

from perinvfl.diagnose.diagnosis import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
