"""Makes tests/golden/segments.json: what a tiny run of four segments gives, on every machine.

    python -m tests.golden.make_segments [FILE]

The steps are those of auditkit.model.step; all that segments are about (cursors, documents, records, the log) is
written here once more from docs/formats.md, with json, hashlib and blake3 alone. tests/golden/test_segments.py makes
the file again; tests/trainer/test_segments.py lets the trainer make the same run.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from auditkit.formats.recipe import (
    BatchConfig,
    InitConfig,
    LossConfig,
    ModelConfig,
    NumericsConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)
from auditkit.model.state import State, initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from auditkit.numerics.arrays import IntArray
from auditkit.numerics.philox import philox
from auditkit.numerics.shuffle import window_order

FILE = Path(__file__).resolve().parent / "segments.json"
NAME = "golden-segments"
STEPS = 16
VOCAB = 61
TOKENIZER = b"{}"  # nothing is tokenised
TEXT = b"x"

FIRST = Recipe(
    ModelConfig(VOCAB, 8, 1, 2, 1, 4, 12, 8, 10_000.0, float(np.float32(1e-5)), True, True, 5),
    LossConfig(float(np.float32(1e-4))),
    OptimizerConfig("adamw", 0.9, 0.95, float(np.float32(1e-8)), 0.1, 0.5),
    ScheduleConfig("cosine", 0.01, 0.001, 2, 0, STEPS),
    BatchConfig(3, 2),
    NumericsConfig(1, "fx", 14, 21),
    InitConfig(7, 0.02, 0.01),
)
LOWER = replace(FIRST, schedule=ScheduleConfig("wsd", 0.004, 0.0, 2, 6, STEPS), batch=BatchConfig(2, 2))
SHORT = replace(
    LOWER,
    model=replace(LOWER.model, context_length=6, sliding_window=0, rope_theta=20_000.0),
    optimizer=replace(LOWER.optimizer, beta2=0.98, weight_decay=0.0),
    batch=BatchConfig(4, 1),
)


@dataclass(frozen=True)
class Data:
    """Ids, how windows are cut from them, and where the files of their corpus lie in the run folder."""

    folder: str
    tokens: int
    context_length: int
    seed: int

    @property
    def ids(self) -> IntArray:
        """(tokens,) uint16, from Philox."""
        words = philox(100 + self.tokens, 0, 0, self.tokens).reshape(-1)[: self.tokens]
        return (words % np.uint32(VOCAB)).astype(np.uint16)

    @property
    def windows(self) -> int:
        """Windows an epoch."""
        return (self.tokens - 1) // self.context_length

    @property
    def corpus(self) -> bytes:
        """The corpus index: one document, which is said to have all ids."""
        document = {"digest": b3(TEXT), "name": "a.txt", "size": len(TEXT), "tokens": self.tokens}
        return canonical({"documents": [document], "format": "auditkit/corpus/v1"})

    def value(self, kind: str) -> dict[str, Any]:
        """The data section of run.json."""
        ids = {"count": self.tokens, "digest": b3(self.ids.tobytes()), "path": f"{self.folder}ids.bin.zst"}
        return {
            **({"ids": ids} if kind == "windows" else {}),
            "context_length": self.context_length,
            "corpus": {
                "digest": b3(self.corpus),
                "license": "CC0-1.0",
                "path": f"{self.folder}corpus.json",
                "text": f"{self.folder}corpus.txt.zst",
                "title": "Philox",
            },
            "dtype": "U16",
            "end_of_text": 0,
            "kind": kind,
            "seed": self.seed,
            "tokenizer": {"digest": b3(TOKENIZER), "path": "tokenizer.json"},
            "windows": self.windows,
        }


A = Data("", 260, 8, 5)
B = Data("data-1/", 420, 8, 6)
C = replace(B, context_length=6)

# First step, recipe and data of each segment; whether the cursor goes on.
SEGMENTS = ((0, FIRST, A, True), (4, LOWER, A, True), (8, LOWER, B, False), (12, SHORT, C, False))


def canonical(value: Any) -> bytes:
    """RFC 8785 for what occurs here: ASCII, integers, no floats."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def b3(data: bytes, context: str | None = None) -> str:
    """BLAKE3, plain or under a derive-key context."""
    return (blake3(data) if context is None else blake3(data, derive_key_context=context)).hexdigest()


def tree(entries: list[bytes]) -> str:
    """The RFC 6962 root, SHA-256."""
    level = [hashlib.sha256(b"\0" + entry).digest() for entry in entries]
    while len(level) > 1:
        above = [hashlib.sha256(b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        level = above + level[len(above) * 2 :]
    return level[0].hex()


def bits(value: np.float32) -> str:
    """A binary32 number as text."""
    return f"f32:{int(np.float32(value).view(np.uint32)):08x}"


def root(state: State, recipe: Recipe, sequence: int) -> str:
    """The state root, from the bytes of the tensors."""
    tensors = [
        {"digest": b3(array.tobytes()), "dtype": "F32", "name": name, "role": role, "shape": list(array.shape)}
        for role, arrays in (("adam_m", state.adam_m), ("adam_v", state.adam_v), ("param", state.params))
        for name, array in sorted(arrays.items())
    ]
    recipe_digest = b3(canonical(recipe.to_value()), "auditkit recipe root v1")
    document = {
        "format": "auditkit/state/v1",
        "recipe": recipe_digest,
        "seed": recipe.init.seed,
        "sequence": sequence,
        "step": state.step,
        "tensors": tensors,
    }
    return b3(canonical(document), "auditkit state root v1")


def batch(data: Data, sequence: int, count: int) -> IntArray:
    """Sequences `sequence` on, (count, context_length + 1) uint16."""
    rows, width = [], data.context_length
    for number in range(sequence, sequence + count):
        epoch, place = divmod(number, data.windows)
        begin = int(window_order(data.seed, epoch, data.windows)[place]) * width
        rows.append(data.ids[begin : begin + width + 1])
    return np.stack(rows)


class Log:
    """The records of the run in one layout of its files."""

    def __init__(self, kind: str, state0: str) -> None:
        self.kind, self.before, self.previous = kind, state0, "0" * 64
        identity = {"data": A.value(kind), "name": NAME, "recipe": FIRST.to_value()}
        self.run = b3(canonical(identity), "auditkit run id v1")
        self.entries: list[bytes] = []

    def segment(self, number: int, recipe: Recipe, data: Data, sequence: int, begun: str) -> None:
        """The record of a segment."""
        self._add(
            {
                "data": b3(canonical(data.value(self.kind)), "auditkit data root v1"),
                "format": "auditkit/segment/v1",
                "previous": self.previous,
                "recipe": b3(canonical(recipe.to_value()), "auditkit recipe root v1"),
                "run": self.run,
                "sequence": sequence,
                "state_after": begun,
                "state_before": self.before,
                "step": number,
            }
        )

    def step(self, number: int, tokens: IntArray, result: Any, after: str) -> None:
        """The record of a step."""
        batch = {"digest": b3(tokens.tobytes()), "dtype": "U16", "shape": list(tokens.shape)}
        leaves = [
            leaf.loss_sum.to_bytes(8, "little", signed=True) + bytes.fromhex(leaf.gradient) for leaf in result.leaves
        ]
        self._add(
            {
                "batch": b3(canonical(batch), "auditkit batch root v1"),
                "format": "auditkit/record/v1",
                "gradient": result.gradient,
                "loss": bits(result.loss),
                "lr": bits(result.lr),
                "micro_batches": {"count": len(leaves), "root": tree(leaves)},
                "norm": bits(result.norm),
                "numerics": 1,
                "previous": self.previous,
                "run": self.run,
                "state_after": after,
                "state_before": self.before,
                "step": number,
            }
        )

    def _add(self, record: dict[str, Any]) -> None:
        data = canonical(record)
        self.entries.append(data)
        self.previous, self.before = b3(data), record["state_after"]


def train() -> dict[str, Any]:
    """The run, and what is kept of it."""
    state, sequence, recipe, data = initial_state(FIRST), 0, FIRST, A
    begins = {start: rest for start, *rest in SEGMENTS if start}
    states, begun = {0: root(state, FIRST, 0)}, {}
    logs = [Log(kind, states[0]) for kind in ("frames", "windows")]
    rates = []
    for number in range(STEPS):
        if number in begins:
            recipe, data, goes_on = begins[number]
            sequence = sequence if goes_on else 0
            begun[number] = root(state, recipe, sequence)
            for log in logs:
                log.segment(number, recipe, data, sequence, begun[number])
        tokens = batch(data, sequence, recipe.batch.sequences)
        state, result = step(state, tokens, recipe, reference)
        sequence += recipe.batch.sequences
        states[number + 1] = root(state, recipe, sequence)
        rates.append(bits(result.lr))
        for log in logs:
            log.step(number, tokens, result, states[number + 1])
    return {
        "states": {str(number): text for number, text in states.items()},
        "begun": {str(number): text for number, text in begun.items()},
        "rates": rates,
        "runs": {
            log.kind: {"run_id": log.run, "log_size": len(log.entries), "log_root": tree(log.entries)} for log in logs
        },
        "segments": [entry.decode("ascii") for entry in logs[0].entries if b"segment/v1" in entry],
        "last_record": logs[0].entries[-1].decode("ascii"),
    }


def encode() -> bytes:
    """The file's bytes."""
    return (json.dumps(train(), indent=1) + "\n").encode("ascii")


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_bytes(encode())
