"""One bit that flips in the memory of the auditor's machine: in an array at some op, in an input, or in a record."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.formats.record import StepRecord
from auditkit.model.part import PartResult
from auditkit.model.state import State
from auditkit.model.step import StepResult
from auditkit.numerics import reference
from auditkit.numerics.arrays import IntArray
from auditkit.replay.backend import Backend
from auditkit.replay.run import Run

PLACES = ("op input", "op result", "parameter", "tokens", "record", "leaf", "recipe", "manifest")


def arrays_in(value: Any, depth: int = 0) -> Iterator[np.ndarray]:
    """Every array that an argument or a result holds."""
    if isinstance(value, np.ndarray):
        if value.nbytes and value.dtype.kind in "fiu":
            yield value
    elif depth < 4:
        if isinstance(value, (list, tuple)):
            for item in value:
                yield from arrays_in(item, depth + 1)
        elif isinstance(value, dict):
            yield from arrays_in(list(value.values()), depth)
        elif is_dataclass(value):
            yield from arrays_in([getattr(value, field.name) for field in fields(value)], depth)


def flip(array: np.ndarray, chance: random.Random) -> None:
    """Flip a bit where the array lies, whoever may write there."""
    index = tuple(chance.randrange(n) for n in array.shape)
    element = array.ctypes.data + sum(i * stride for i, stride in zip(index, array.strides, strict=True))
    bit = chance.randrange(8 * array.itemsize)
    ctypes.c_ubyte.from_address(element + bit // 8).value ^= 1 << bit % 8


class FlippingOps:
    """The reference ops, of which call number `at` meets a flipped bit, in an input or in its result."""

    def __init__(self, chance: random.Random, at: int, result: bool) -> None:
        self.chance, self.at, self.result = chance, at, result
        self.calls, self.armed, self.flipped = 0, False, ""

    def __getattr__(self, name: str) -> Any:
        op = getattr(reference, name)
        if not callable(op):
            return op

        def call(*arguments: Any, **named: Any) -> Any:
            mine = self.armed and not self.flipped and self.calls == self.at
            self.calls += self.armed
            if mine and not self.result:
                self._flip(name, (arguments, named))
            found = op(*arguments, **named)
            if mine and self.result:
                self._flip(name, found)
            return found

        return call

    def _flip(self, name: str, value: Any) -> None:
        arrays = list(arrays_in(value))
        if arrays:
            flip(self.chance.choice(arrays), self.chance)
            self.flipped = name
        else:
            self.at += 1  # of this call nothing lies in memory: the next one


@dataclass(frozen=True)
class Faulty(Backend):
    """A back end that does something to its inputs when it is first used."""

    hurt: Callable[[State, IntArray], None] = lambda state, tokens: None

    def step(self, state: State, tokens: IntArray, recipe: Recipe, **options: Any) -> tuple[State, StepResult]:
        """As Backend.step."""
        self._begin(state, tokens)
        return super().step(state, tokens, recipe, **options)

    def part(self, state: State, tokens: IntArray, chosen: Any, recipe: Recipe, **options: Any) -> PartResult:
        """As Backend.part."""
        self._begin(state, tokens)
        return super().part(state, tokens, chosen, recipe, **options)

    def _begin(self, state: State, tokens: IntArray) -> None:
        if isinstance(self.ops, FlippingOps):
            self.ops.armed = True
        self.hurt(state, tokens)


def backend(place: str, chance: random.Random, threads: int, step: int) -> Backend:
    """A back end on which one bit flips at `place`; for those outside of it `step` says whose record it is."""
    if place.startswith("op "):
        ops = FlippingOps(chance, chance.randrange(240), place == "op result")
        return Faulty(ops, threads, "faulty")  # type: ignore[arg-type]
    done: list[bool] = []

    def hurt(state: State, tokens: IntArray) -> None:
        if not done:
            done.append(True)
            _hurt(place, state, tokens, chance, step)

    return Faulty(reference, threads, "faulty", hurt=hurt)


OPENED: list[Run] = []  # the run under way


def _hurt(place: str, state: State, tokens: IntArray, chance: random.Random, step: int) -> None:
    run = OPENED[-1]
    if place == "parameter":
        roles = [role for role in (state.params, state.adam_m, state.adam_v) if role]
        flip(chance.choice(list(chance.choice(roles).values())), chance)
    elif place == "tokens":
        flip(tokens, chance)
    elif place == "record":
        record: StepRecord = run.record(step)
        name = chance.choice(["state_after", "gradient", "micro_root", "batch", "state_before", "loss", "norm", "lr"])
        value = getattr(record, name)
        object.__setattr__(record, name, _digit(value, chance) if isinstance(value, str) else value ^ 1)
    elif place == "leaf":
        leaves = run.leaves

        def spoilt(number: int) -> Any:
            found = leaves(number)
            leaf = chance.choice(found)
            object.__setattr__(leaf, "gradient", _digit(leaf.gradient, chance))
            del run.leaves  # type: ignore[method-assign]
            return found

        run.leaves = spoilt  # type: ignore[method-assign]
    elif place == "recipe":
        schedule = run.segment(step).recipe.schedule
        object.__setattr__(schedule, "peak_lr", schedule.peak_lr * (1 + 2**-20))
    else:
        object.__setattr__(run, "_bytes", _bit(run._bytes, chance))


def _digit(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text))
    return text[:at] + format(int(text[at], 16) ^ 1 << chance.randrange(4), "x") + text[at + 1 :]


def _bit(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
