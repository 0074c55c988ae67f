"""The runs that a campaign verifies: an honest one, and others in which one published thing is a lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.replay.make_run import Parts, change_leaf, flip_state, publish, rows_of, train, train_with

STEP = 4  # its start state and its end state are published
LIE = "0" * 64


@dataclass(frozen=True)
class World:
    """A published run in which nothing, or something about STEP, is a lie that every digest agrees with.

    `whole` and `first` say whether an audit of the whole step, and of its first micro-batch, could find it.
    """

    name: str
    folder: Path
    whole: bool = False
    first: bool = False

    def tampered(self, micro_batches: str | None) -> bool:
        """Whether what is audited is a lie, so that MATCH would be wrong."""
        if micro_batches is None:
            return self.whole
        return self.first if micro_batches == "0" else self.first or self.name in ("leaf", "loss")

    def files(self) -> dict[str, bytes]:
        """Everything that a server of the run serves."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}


def worlds(folder: Path) -> list[World]:
    """The honest run first."""
    parts = train()
    found = [World("honest", publish(parts, folder / "honest"))]
    for name, lie, first in LIES:
        made = lie(parts.copy())
        found.append(World(name, publish(made, folder / name), True, first))
    return found


def _end_state(parts: Parts) -> Parts:
    parts.states[STEP + 1] = flip_state(parts.states[STEP + 1], "params", "model.norm.weight", 3, 11)
    return parts


def _start_state(parts: Parts) -> Parts:
    parts.states[STEP] = flip_state(parts.states[STEP], "params", "model.embed_tokens.weight", 7, 22)
    return parts


def _rate(parts: Parts) -> Parts:
    return train_with(parts, wrong_step=STEP)


def _leaf(parts: Parts) -> Parts:
    parts.results[STEP] = change_leaf(parts.results[STEP], 1, gradient=LIE)
    return parts


def _first_leaf(parts: Parts) -> Parts:
    leaf = parts.results[STEP].leaves[0]
    parts.results[STEP] = change_leaf(parts.results[STEP], 0, loss_sum=leaf.loss_sum ^ 1)
    return parts


def _loss(parts: Parts) -> Parts:
    parts.rows = rows_of(parts)
    parts.rows[STEP] = replace(parts.rows[STEP], loss=parts.rows[STEP].loss ^ 1)
    return parts


Lie = tuple[str, Callable[[Parts], Parts], bool]  # name, what it does, whether the first micro-batch shows it
LIES: tuple[Lie, ...] = (
    ("end state", _end_state, False),
    ("start state", _start_state, True),
    ("learning rate", _rate, False),
    ("leaf", _leaf, False),
    ("first leaf", _first_leaf, True),
    ("loss", _loss, False),
)
