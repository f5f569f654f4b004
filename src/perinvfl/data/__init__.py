"""Data of federated problems: `Federation`, the benchmarks that make one, and what users bring."""
