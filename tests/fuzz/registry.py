"""The fuzzers by name."""

from collections.abc import Callable

from tests.fuzz import experiments, files, messages, records
from tests.fuzz.core import Fuzzer

FUZZERS: dict[str, Callable[[], Fuzzer]] = {
    "experiments": experiments.fuzzer,
    "files": files.fuzzer,
    "messages": messages.fuzzer,
    "records": records.fuzzer,
}
