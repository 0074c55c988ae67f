"""The kept corpora and some new inputs keep every parser's promise; the corpora stay small and complete."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tests.formats.parsers import PARSERS
from tests.fuzz import corpus_file, mutate, targets
from tests.fuzz.parsers import MORE

FACTOR, FLOOR = 150, 4 << 20  # bytes of Python's memory for each byte of an input, and for any
MOST_BYTES = 1_100_000  # of all corpora together
NEW = 150  # changed inputs of each target


@pytest.mark.parametrize("target", sorted(targets.GROUPS))
def test_what_was_found_is_refused_or_printed_back(target: str) -> None:
    inputs = corpus_file.read(target)
    assert len(inputs) > 15, "fuzz this target and keep what it finds"
    accepted = sum(targets.run(target, data) for data in inputs)
    assert 0 < accepted < len(inputs)


@pytest.mark.parametrize("target", sorted(targets.GROUPS))
def test_changed_inputs_are_refused_or_printed_back(target: str) -> None:
    inputs = [*targets.examples(target), *corpus_file.read(target)]
    rng = random.Random(target)
    for _ in range(NEW):
        targets.run(target, mutate.mutated(rng, rng.choice(inputs), inputs)[: targets.INPUT_BYTES])


@pytest.mark.parametrize("target", sorted(targets.GROUPS))
def test_memory_grows_with_the_input_and_not_with_what_it_claims(target: str) -> None:
    inputs = sorted(corpus_file.read(target), key=len)[-40:]
    for data in inputs:
        targets.run(target, data)  # what is loaded once is no matter of the input
    tracemalloc.start()
    try:
        for data in inputs:
            tracemalloc.clear_traces()
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            targets.run(target, data)
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken <= FLOOR + FACTOR * len(data), targets.parser_of(target, data)
    finally:
        tracemalloc.stop()


def test_every_parser_is_fuzzed() -> None:
    fuzzed = {name for group in targets.GROUPS.values() for name in group}
    manifests = {name for name in PARSERS if name.startswith("run_")}  # other examples of one parser
    assert fuzzed == (set(PARSERS) | set(MORE)) - manifests
    assert all(targets.examples(target) for target in targets.GROUPS)


def test_the_corpora_are_small_and_in_order() -> None:
    files = sorted(corpus_file.FOLDER.iterdir())
    assert {path.stem for path in files} == set(targets.GROUPS)
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    for path in files:
        lines = path.read_bytes().splitlines()
        assert lines == sorted(set(lines)), path.name


def test_a_broken_promise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that prints other bytes, or lets an error of Python's through, ends a trial."""
    monkeypatch.setitem(targets._PARSERS, "canonical", lambda data: data + b" ")
    with pytest.raises(targets.Broken, match="prints"):
        targets.run("json", b"\0{}")
    monkeypatch.setitem(targets._PARSERS, "canonical", lambda data: {}[0])
    with pytest.raises(KeyError):
        targets.run("json", b"\0{}")
