"""perinvfl: federated learning that is personal to each client and still holds when the world shifts."""

__version__ = "0.1.0"
