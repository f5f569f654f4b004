"""A part of every fuzzer, with a fixed seed and with a fresh one; `make fuzz SECONDS=600` runs them for longer."""

import secrets
from collections.abc import Callable

import pytest

from perinvfl.errors import UserError
from tests.fuzz import core
from tests.fuzz.experiments import Experiments, toml
from tests.fuzz.registry import FUZZERS

FIXED, FRESH = 2.0, 4.0  # seconds
AT_SITES = "these data are at the sites"


@pytest.mark.slow
@pytest.mark.parametrize("name", FUZZERS)
def test_odd_input_is_answered_in_one_sentence(name: str) -> None:
    fuzzer = FUZZERS[name]()
    for seed, seconds in (("fixed", FIXED), (secrets.token_hex(4), FRESH)):
        outcome = core.run(fuzzer, seed, seconds=seconds)
        assert outcome.inputs, "nothing was tried"
        assert not outcome.failures, outcome.report()


def test_a_failure_is_noticed_and_can_be_repeated() -> None:
    def feed(number: int) -> None:
        if number % 5 == 0:
            raise UserError("refused, as it should be")
        if number % 7 == 0:
            raise KeyError(number)

    fuzzer = core.Fuzzer("numbers", lambda rng: rng.randrange(100), feed)
    found = core.run(fuzzer, "a", inputs=200)
    assert found.inputs == 200 and found.refused and sum(found.counts.values()) > 5 and len(found.failures) == 1
    (told,) = found.failures.values()
    number = int(told.partition("--first ")[2].partition(" ")[0])
    again = core.run(fuzzer, "a", inputs=1, first=number)
    assert again.counts == {next(iter(found.failures)): 1}


def test_a_bomb_and_an_endless_loop_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "SLOWEST", 0.2)

    def endless(_: int) -> None:
        while True:
            pass

    cases: list[tuple[Callable[[int], object], str]] = [
        (lambda _: bytearray(2 * core.MEMORY), "MemoryError"),
        (endless, "TooSlow"),
    ]
    for feed, what in cases:
        found = core.run(core.Fuzzer("one", lambda rng: 0, feed), "a", inputs=1)
        assert what in next(iter(found.failures))


def test_what_is_mutated_is_sound_before() -> None:
    """Else every input would be refused for the same reason."""
    experiments = Experiments()
    refused = []
    for table in experiments.tables:
        try:
            experiments.feed((toml(table), []))
        except UserError as error:
            refused.append(f"{table['data']['benchmark']}: {error}")
    experiments.close()
    unexpected = [line for line in refused if not line.startswith(("waterbird", "sites"))]
    assert len(unexpected) <= len(experiments.tables) // 6, unexpected  # pooled methods cannot be deployed
