"""The shortcut audit of a table, before anything is trained for use: which columns change their meaning between
contexts and sites, what happens to a model without each of them, and what to do with each.

`table` is the data as one table, `meaning` compares a column's relation to the label between contexts and sites,
`habits` finds values by which a column tells the site, `without` trains linear models without columns and tests them on
rows, contexts and sites that they did not see, `verdicts` decides, `held_out` finds what the rows held out say against
it, `words` says it all with its `numbers`, and `experiment` is the file to go on with.
"""

from perinvfl.audit.audit import Audit, audit_table

__all__ = ["Audit", "audit_table"]
