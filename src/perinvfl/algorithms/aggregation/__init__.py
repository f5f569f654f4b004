"""How a server puts the clients' updates together: the mean, and what papers do instead of it.

One interface for all drivers. `combine` is the definition, from updates that carry a client axis; `begin` gathers them
one by one, in the order of the clients, for drivers that never hold all of them at once.
"""

from perinvfl.algorithms.aggregation.base import Aggregation, Gathering
from perinvfl.algorithms.aggregation.clipped import Clipped
from perinvfl.algorithms.aggregation.fedgma import Masked
from perinvfl.algorithms.aggregation.fedomg import Matched
from perinvfl.algorithms.aggregation.mean import Mean
from perinvfl.algorithms.aggregation.trimmed import Trimmed

__all__ = ["Aggregation", "Clipped", "Gathering", "Masked", "Matched", "Mean", "Trimmed"]
