"""How a step is laid out in memory: what is kept, what is made again, and where the rest lies. No plan changes a bit.

A sum of integers may be cut anywhere, and rows, columns and heads that do not meet may be computed one after the other.
Nothing else is cut: a row is rounded whole, and a product over tokens sees all tokens of its micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Place: TypeAlias = Literal["memory", "host", "disk"]  # memory: where the ops compute


@dataclass(frozen=True)
class Cuts:
    """How much of the large arrays of a micro-batch there is at a time; 0 means all.

    tokens      rows of the logits
    rows        rows of the vocabulary tables whose gradient is made at a time
    key_heads   key heads of an attention, with their query heads
    """

    tokens: int = 0
    rows: int = 0
    key_heads: int = 0


WHOLE = Cuts()


@dataclass(frozen=True)
class Plan:
    """One way to take a step.

    pieces      False: everything is in memory at once, `workers` micro-batches side by side, and what is below does not
                count. True: one layer at a time
    group       micro-batches that pass a layer together, so that its weights and sums are brought once for all of them
    recompute   keep only what enters each layer, and run the layer again for its backward pass
    params, sums, inputs  where parameters, running sums of gradients and what enters the layers lie
    """

    pieces: bool = False
    workers: int = 1
    group: int = 1
    recompute: bool = False
    cuts: Cuts = WHOLE
    params: Place = "memory"
    sums: Place = "memory"
    inputs: Place = "memory"

    def describe(self) -> str:
        """The plan in words."""
        if not self.pieces:
            side = "one micro-batch at a time" if self.workers == 1 else f"{self.workers} micro-batches side by side"
            return f"everything in memory, {side}"
        together = "" if self.group == 1 else f", {self.group} micro-batches together"
        places = [f"{what} {_AT[place]}" for what, place in (("parameters", self.params), ("sums", self.sums))]
        again = [f"layers run again in the backward pass, their inputs {_AT[self.inputs]}"] if self.recompute else []
        return "; ".join([f"one layer at a time{together}", *places, *again])


_AT = {"memory": "in memory", "host": "in main memory", "disk": "on the disk"}
