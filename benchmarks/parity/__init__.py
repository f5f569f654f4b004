"""The same methods in other people's code, on the same data: do they end with the same accuracy?

    python -m benchmarks.parity export DATA                              here: data and first weights, for all
    python -m benchmarks.parity ours DATA                                here
    python -m benchmarks.parity.pfllib CHECKOUT DATA                     where PFLlib's requirements are installed
    python -m benchmarks.parity.flbench CHECKOUT DATA                    where FL-bench's requirements are installed
    python -m benchmarks.parity compare DATA                             here: results/parity/records.json

CHECKOUT is a clone of the other project, which is used as it is. DATA is any folder; what is done is not done again.
"""
