"""The parameters of a step, brought where they are needed one stage at a time, the next stage's meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from auditkit.formats.recipe import Recipe
from auditkit.model.network import Prepared, weight_bits
from auditkit.model.ops import Coming, Ops
from auditkit.model.params import EMBED, HEAD
from auditkit.numerics.arrays import F32

_TABLES = (EMBED, HEAD)
TABLE_PARTS = 8  # in which a table comes: it is as large as many layers


class _Held(Mapping[str, Any]):
    """Values that are made when first asked for and kept until they are dropped."""

    def __init__(self, make: Callable[[str], Any], names: Sequence[str]) -> None:
        self._make, self._names = make, names
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def close(self) -> None:
        """Forget how to make values: what makes them refers to this object, and would keep it."""
        self._make = _closed

    def keep(self, names: Sequence[str]) -> None:
        """Drop all others."""
        self._made = {name: value for name, value in self._made.items() if name in names}


def _closed(name: str) -> Any:
    raise KeyError(name)  # a programming error, never data


class Weights:
    """Parameters and their fixed-point rows of one stage of the network at a time.

    params: host arrays by name; if `ahead`, they are read in a thread before they are asked for. Else those of the next
    stage begin to move meanwhile; the vocabulary tables only if there is `room` for them.
    """

    def __init__(
        self, params: Mapping[str, F32], recipe: Recipe, ops: Ops, *, ahead: bool = False, room: bool = False
    ) -> None:
        self._params, self._ops, self._room = params, ops, room
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="weights") if ahead else None
        self._coming: dict[str, Future[F32]] = {}
        self._moving: dict[str, Coming] = {}
        self._next: frozenset[str] = frozenset()
        bits, model = weight_bits(recipe), recipe.model
        names = list(params)
        held = self._held = _Held(self._bring, names)
        self._rows = _Held(lambda name: ops.weight_rows(held[name], bits[name]), list(bits))
        self._rows_t = _Held(lambda name: ops.weight_rows_t(held[name], bits[name]), list(bits))
        rope = ops.rope_table(model.context_length, model.head_dim, model.rope_theta)
        self.prepared = Prepared(held, self._rows, self._rows_t, rope)

    def stage(self, names: Sequence[str], then: Sequence[str] = ()) -> None:
        """Keep only what belongs to these parameters; of those that come next what is under way, and what `expect`
        begins to bring.
        """
        for held in (self._held, self._rows, self._rows_t):
            held.keep(names)
        wanted = {*names, *then}
        for name in [name for name in self._moving if name not in wanted]:
            self._moving.pop(name).end()
        self._coming = {name: coming for name, coming in self._coming.items() if name in wanted}
        self._next = frozenset(then) - frozenset(names)

    def expect(self, name: str) -> None:
        """Begin to bring a parameter of the next stage; of a vocabulary table the next of TABLE_PARTS parts."""
        if name in self._moving:
            self._moving[name].begin()
        if name not in self._next or name in self._coming or name in self._moving:
            return
        if self._pool is not None:
            self._coming[name] = self._pool.submit(self._params.__getitem__, name)
        elif self._room or name not in _TABLES:
            self._moving[name] = self._ops.bring(self._params[name], TABLE_PARTS if name in _TABLES else 1)

    def parts(self, name: str) -> int:
        """How often `expect` will begin to bring something of a parameter."""
        if name in self._moving:
            return self._moving[name].left
        if name not in self._next or name in self._coming:
            return 0
        if self._pool is not None:
            return 1
        return (TABLE_PARTS if self._room else 0) if name in _TABLES else 1

    def round(self, name: str) -> None:
        """Make the rows of a parameter in both directions, and drop the parameter itself until the next stage."""
        assert self._rows[name] is not None and self._rows_t[name] is not None
        self._held.keep([other for other in self._held if other != name])

    def close(self) -> None:
        """Drop everything and end the thread; nothing can be asked for afterwards."""
        self.stage(())
        for held in (self._held, self._rows, self._rows_t):
            held.close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _bring(self, name: str) -> Any:
        if name in self._moving:
            return self._moving.pop(name)()
        coming = self._coming.pop(name, None)
        array = self._params[name] if coming is None else coming.result()
        return self._ops.place(array)
