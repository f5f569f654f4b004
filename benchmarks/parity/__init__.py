"""The same methods in other people's code, on the same data: do they end with the same accuracy?

    python -m benchmarks.parity export DATA                          here: data, first weights and batches, for all
    python -m benchmarks.parity ours DATA [METHOD ...]               here
    python -m benchmarks.parity plain DATA                           here: one method in double precision
    python -m benchmarks.parity.pfllib CHECKOUT DATA [METHOD ...]    where PFLlib's requirements are installed
    python -m benchmarks.parity.flbench CHECKOUT DATA [METHOD ...]   where FL-bench's requirements are installed
    python -m benchmarks.parity compare DATA                         here: results/parity/records.json

CHECKOUT is a clone of the other project, which is used as it is. DATA is any folder; what is done is not done again.
METHOD is a name in plan.py; without one, all are run. Records of methods that DATA has no runs of stay as they are.
"""
