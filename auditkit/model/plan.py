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
    keep        results of a layer (kept_results.RESULTS) that are kept besides, and not made again
    more        results that are kept as well of some of the layers, `more_layers` of them, evenly spread: as many as
                copies have time for
    beside      take the forward pass of a group beside the backward pass of the one before, so that what layers keep
                comes and goes all the time; with `recompute` only
    near        layers, counted from the last, whose inputs and results stay in memory wherever the others' lie
    logits_once keep the gradient of a micro-batch's logits until that of the head's weights is made of it, instead of
                making its columns again; of an untied head only
    params, sums, inputs  where parameters, running sums of gradients and what the layers keep lie
    tables      where the sums of the vocabulary tables lie, by default as the others
    """

    pieces: bool = False
    workers: int = 1
    group: int = 1
    recompute: bool = False
    keep: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    more_layers: int = 0
    beside: bool = False
    near: int = 0
    logits_once: bool = False
    cuts: Cuts = WHOLE
    params: Place = "memory"
    sums: Place = "memory"
    inputs: Place = "memory"
    tables: Place | None = None

    @property
    def table_sums(self) -> Place:
        """Where the sums of the vocabulary tables lie."""
        return self.tables or self.sums

    @property
    def tables_by_batch(self) -> bool:
        """Whether a micro-batch is done with all of the vocabulary tables before the next one: what it needs is brought
        once then, and not for each piece, and the sums are there anyway.
        """
        return self.table_sums == "memory"

    def keep_of(self, layer: int, layers: int) -> tuple[str, ...]:
        """The results that are kept of a layer of so many."""
        return self.most_kept if self.with_more(layer + 1, layers) > self.with_more(layer, layers) else self.keep

    def with_more(self, count: int, layers: int) -> int:
        """Of the first `count` layers of so many those of which more is kept: the last one only if all are, for what is
        kept of it comes back beside the head, where there is least room.
        """
        return -(-count * min(self.more_layers, layers) // layers)

    @property
    def most_kept(self) -> tuple[str, ...]:
        """The results that are kept of a layer of which more is kept, if there is any."""
        return (*self.keep, *self.more) if self.more_layers else self.keep

    def describe(self) -> str:
        """The plan in words."""
        if not self.pieces:
            side = "one micro-batch at a time" if self.workers == 1 else f"{self.workers} micro-batches side by side"
            return f"everything in memory, {side}"
        together = "" if self.group == 1 else f", {self.group} micro-batches together"
        if self.beside:
            together += ", their forward pass beside the backward pass of those before"
        places = [f"{what} {_AT[place]}" for what, place in (("parameters", self.params), ("sums", self.sums))]
        if self.table_sums != self.sums:
            places.append(f"those of the vocabulary tables {_AT[self.table_sums]}")
        return "; ".join([f"one layer at a time{together}", *places, *self._again()])

    def _again(self) -> list[str]:
        if not self.recompute:
            return []
        kept = f"inputs and results ({', '.join(self.keep)})" if self.keep else "inputs"
        kept += f" (of {self.more_layers} also {', '.join(self.more)})" if self.more_layers else ""
        near = f", of the last {self.near} in memory" if self.near and self.inputs != "memory" else ""
        return [f"layers run again in the backward pass, their {kept} {_AT[self.inputs]}{near}"]


_AT = {"memory": "in memory", "host": "in main memory", "disk": "on the disk"}
