"""What publishing every step costs a training: records, digests, a state and a signed log with each step.

    python -m bench.publishing --size gigabyte --sequences 64          a state of 1 GB, 16,384 tokens a step
    python -m bench.publishing --size gigabyte --sequences 2048 --micro 64 --device cuda

One process trains in turns: steps that publish everything, by the trainer's own loop, and the same steps with nothing
but the training, whose digests are left out of the ops. What else runs on the machine slows both alike. A step of the
first kind is counted from its begin to that of the next one, while the state of the step before is compressed, written
and published beside it; the first such step of a turn is not counted, for nothing runs beside it. Nor does anything run
beside steps of the second kind: they begin when all is published.

What a counted step spends is told by parts. "step longer by" is its arithmetic against that of a plain step: what runs
beside takes processors, memory and Python's lock from it. A writer that is too slow shows as waiting, a publisher that
is too slow in publications that have several steps.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from auditkit.formats import canonical, zstd
from auditkit.formats.digest import ZERO_DIGEST, Digest, content_digest
from auditkit.formats.fields import Fields
from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.formats.run import DataSpec
from auditkit.kernels.backend import CudaOps
from auditkit.model.params import parameter_count
from auditkit.model.state import State
from auditkit.replay.backend import Backend, choose
from auditkit.replay.windows import Windows
from auditkit.trust.keys import new_key, save_private
from bench import replay, state
from bench.process import python
from bench.rows import Row, shown
from trainer.live.settings import Publication
from trainer.live.worker import Live
from trainer.log import RunLog
from trainer.loop import Training
from trainer.prepared import Prepared
from trainer.run import first_state
from trainer.runner import OneProcess
from trainer.segments import Course
from trainer.stop import StopRequest
from trainer.work import Settings, Work

BAR = 5.0  # per cent, where a state is 1 GB and a step as large as they are in practice
PRACTICE = 16_384  # tokens a step, and more
TOKENS, TEXT, TOKENIZER = 1 << 20, b"random ids have no text", b"{}"
SIZES = {
    "bundled": lambda: replay.recipes()["bundled model"],
    "small": lambda: replay.recipes()["10 M parameters"],
    "gigabyte": state.recipe,
}
STEP, DIGESTS, SNAPSHOT, WAITING, RECORDS = PARTS = (
    "step longer by", "digests", "snapshot", "waiting for the state before", "records"
)  # fmt: skip
PATIENCE = 600.0  # seconds that the last publication of a turn may take


def rows() -> list[Row]:
    """At a size that takes a minute."""
    run = python("-m", "bench.publishing", "--size", "small", "--sequences", "8", "--json")
    if run.code != 0:
        raise RuntimeError(f"ended with code {run.code}: {run.stderr[-500:]}")
    return [Row(**row) for row in json.loads(run.stdout)]


class Clock:
    """Seconds by what they were spent on, by each step's begin, and how long states were on their way to the disk."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(PARTS, 0.0)
        self.begun: list[tuple[float, dict[str, float]]] = []
        self.written: list[float] = []

    def begin(self) -> None:
        """A step begins."""
        self.begun.append((time.perf_counter(), dict(self.spent)))

    def counted(self) -> tuple[list[float], dict[str, float]]:
        """Seconds of each step but the first, up to the begin of the last; and what they spent altogether."""
        (_, before), *_, (_, after) = self.begun[1:]
        return np.diff([at for at, _ in self.begun[1:]]).tolist(), {part: after[part] - before[part] for part in PARTS}

    def timed(self, part: str, call: Callable[[], Any]) -> Any:
        """What the call returns; its seconds are added to a part."""
        start = time.perf_counter()
        try:
            return call()
        finally:
            self.spent[part] += time.perf_counter() - start


class Timed(OneProcess):
    """The trainer's runner, with a clock."""

    def __init__(self, backend: Backend, recipe: Recipe, clock: Clock) -> None:
        super().__init__(backend, recipe)
        self._clock = clock

    def step(self, state: State, tokens: Any, asked: bool) -> Any:
        """Note when it begins, and what it takes besides digests."""
        self._clock.begin()
        before = self._clock.spent[DIGESTS]
        made = self._clock.timed(STEP, lambda: super(Timed, self).step(state, tokens, asked))
        self._clock.spent[STEP] -= self._clock.spent[DIGESTS] - before
        return made

    def write(self, state: State, folder: Path, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Wait for the state before, then take the snapshot."""
        self._clock.timed(WAITING, self.settle)
        start = time.perf_counter()

        def complete() -> None:
            self._clock.written.append(time.perf_counter() - start)
            after()

        self._clock.timed(SNAPSHOT, lambda: super(Timed, self).write(state, folder, before, complete))


class TimedLog:
    """A log of a run, with a clock."""

    def __init__(self, log: RunLog, clock: Clock) -> None:
        self._log, self._clock, self.sync = log, clock, log.sync

    def append(self, *row: Any) -> None:
        """As RunLog."""
        self._clock.timed(RECORDS, lambda: self._log.append(*row))


class Counted(Live):
    """Counts the publications."""

    publications = 0

    def _publish(self, step: int) -> None:
        super()._publish(step)
        self.publications += 1


def with_digests(backend: Backend, digests: Callable[..., list[Digest]]) -> Backend:
    """The same back end with other digests."""
    ops: Any = copy.copy(backend.ops) if isinstance(backend.ops, CudaOps) else SimpleNamespace(**vars(backend.ops))
    ops.digests = digests
    return dataclasses.replace(backend, ops=ops)


def prepared(folder: Path, recipe: Recipe) -> Prepared:
    """A work folder of random ids."""
    folder.mkdir(parents=True)
    ids = np.random.default_rng(0).integers(0, recipe.model.vocab_size, TOKENS).astype(np.uint16).tobytes()
    document = {"digest": content_digest(TEXT), "name": "a.txt", "size": len(TEXT), "tokens": TOKENS}
    corpus = canonical.dumps({"documents": [document], "format": "auditkit/corpus/v1"}, what="corpus")
    length = recipe.model.context_length
    value = {
        "context_length": length,
        "corpus": {
            "digest": content_digest(corpus),
            "license": "CC0-1.0",
            "path": "corpus.json",
            "text": "corpus.txt.zst",
            "title": "random ids",
        },
        "dtype": "U16",
        "end_of_text": 0,
        "kind": "frames",
        "seed": 0,
        "tokenizer": {"digest": content_digest(TOKENIZER), "path": "tokenizer.json"},
        "windows": (TOKENS - 1) // length,
    }
    spec = DataSpec.from_fields(Fields(value, "data"))
    made = Prepared(spec, recipe.model.vocab_size, TOKENS, content_digest(ids))
    files = {"corpus.json": corpus, "corpus.txt.zst": zstd.compress(TEXT), "tokenizer.json": TOKENIZER, "ids.bin": ids}
    for name, data in (files | {"prepared.json": made.encode()}).items():
        (folder / name).write_bytes(data)
    return made


class Bench:
    """A training that publishes everything, and the same without."""

    def __init__(self, folder: Path, recipe: Recipe, device: str, threads: int | None) -> None:
        self.clock, self._recipe = Clock(), recipe
        backend = choose(device, threads)
        self._plain = with_digests(backend, lambda arrays, key=None: [ZERO_DIGEST] * len(arrays))
        digests = backend.ops.digests
        timed = with_digests(backend, lambda *of: self.clock.timed(DIGESTS, lambda: digests(*of)))
        work = Work(folder / "work")
        settings = Settings(recipe.schedule.total_steps, 1, ())
        self.course = Course.begin(work, recipe, prepared(work.folder, recipe), settings)
        save_private(folder / "key.pem", new_key())
        self.live = Counted(self.course, Publication(folder / "out", "bench", log_key=folder / "key.pem"))
        self._batches: Windows = self.course.batches(self.course.timeline.segments[0])
        self._runner = Timed(timed, recipe, self.clock)
        self.state: State = self._runner.first(lambda: first_state(recipe))
        work.states.mkdir()
        self._training = Training(work, settings, self._batches, self._runner, self.live.completed)
        self._writer = RunLog.create(work.folder)
        self._training.save(self.state, self._writer)
        self._runner.settle()
        self.live.start()

    def published(self, steps: int) -> tuple[list[float], dict[str, float]]:
        """Seconds of so many steps, each beside the state of the one before; and what they spent altogether."""
        self.clock.begun.clear()
        end = dataclasses.replace(self._training.settings, steps=self.state.step + steps + 2)
        log = TimedLog(self._writer, self.clock)
        self.state = dataclasses.replace(self._training, settings=end).train(self.state, log, StopRequest())
        self._wait()
        return self.clock.counted()

    def plain(self, steps: int) -> list[float]:
        """Seconds of so many steps of nothing but training."""
        found, state = [], self.state
        for _ in range(steps):
            start = time.perf_counter()
            state, _ = self._plain.step(state, self._batches.tokens(state.step), self._recipe)
            found.append(time.perf_counter() - start)
        return found

    def _wait(self) -> None:
        """Until all is published. Raises what has failed."""
        until = time.monotonic() + PATIENCE
        while self.live.steps < self.state.step:
            if time.monotonic() > until:
                raise self.live.finish(lambda: False) or TimeoutError("a publication does not end")
            time.sleep(0.01)

    def close(self) -> str:
        """End the publication; how many it has been."""
        failed = self.live.finish(lambda: False)
        self._writer.__exit__()
        if failed is not None:
            raise failed
        return f"{self.live.publications} publications of {self.live.steps} steps"


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Turns of both, and what they say."""
    recipe = SIZES[arguments.size]()
    batch = BatchConfig(arguments.sequences, min(arguments.micro, arguments.sequences))
    recipe = dataclasses.replace(recipe, batch=batch)
    if arguments.folder:
        Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        bench = Bench(Path(folder), recipe, arguments.device, arguments.threads)
        bench.plain(1)
        factors, plain, spent = [], [], dict.fromkeys((*PARTS, "the rest"), 0.0)
        for _ in range(arguments.rounds):
            (with_all, parts), without = bench.published(arguments.steps), bench.plain(arguments.steps)
            factors.append(statistics.mean(with_all) / statistics.mean(without))
            plain.append(statistics.mean(without))
            parts |= {"the rest": sum(with_all) - sum(parts.values()), STEP: parts[STEP] - sum(without)}
            spent = {part: spent[part] + seconds for part, seconds in parts.items()}
        published = bench.close()
    each = {part: seconds / (arguments.rounds * arguments.steps) for part, seconds in spent.items()}
    beside = f"a state is on the disk after {shown(statistics.median(bench.clock.written))} s, {published}"
    return said(recipe, arguments.device, statistics.median(factors), statistics.median(plain), each, beside)


def said(recipe: Recipe, device: str, factor: float, plain: float, spent: dict[str, float], beside: str) -> list[Row]:
    """The rows of one size, given seconds of a plain step, what a published one spends, and what is beside it."""
    count, tokens = parameter_count(recipe.model), recipe.batch.sequences * recipe.model.context_length
    cost, size = 100 * (factor - 1), 12 * count / 1e9
    judged = size >= 0.9 and tokens >= PRACTICE
    parts = ", ".join(f"{part} {shown(seconds)} s" for part, seconds in spent.items())
    where = f"{count / 1e6:.3g} M parameters, {tokens:,} tokens a step, {device}"
    return [
        Row("training step that publishes nothing", plain, "s", where),
        Row(
            "publishing each step costs",
            cost,
            "%",
            f"state of {size:.2g} GB; of a step: {parts}; {beside}",
            f"at most {BAR:g} %" if judged else "",
            cost <= BAR if judged else None,
        ),
    ]


def main(words: Sequence[str]) -> int:
    """Measure one size and print it."""
    parser = argparse.ArgumentParser(prog="python -m bench.publishing", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="gigabyte")
    parser.add_argument("--sequences", type=int, default=64, help="a step, of 256 tokens each")
    parser.add_argument("--micro", type=int, default=4, help="sequences of a micro-batch")
    parser.add_argument("--steps", type=int, default=3, help="counted in each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--folder", help="where to write; each published step takes a state on the disk")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(words)
    found = measure(arguments)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in found]))
    else:
        for row in found:
            print(f"{row.name}: {shown(row.value)} {row.unit} ({row.note}) {row.bar}")
    return 1 if any(row.passes is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
