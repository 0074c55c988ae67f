"""A back end that takes its steps under a plan: with little memory, and able to go on after it was killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from auditkit.errors import MachineFault, Unsupported
from auditkit.formats import canonical
from auditkit.formats.digest import Digest, content_digest
from auditkit.formats.recipe import Recipe
from auditkit.model.params import EMBED, HEAD
from auditkit.model.pieces_step import Room
from auditkit.model.plan import Place
from auditkit.model.shelf import Divided, InMemory, Moved, Shelf
from auditkit.model.state import ROLES, HostTensors, State, flat_pieces, state_digests
from auditkit.model.step import NonFinite, StepResult
from auditkit.model.updated import UpdatedTensors
from auditkit.numerics.arrays import F32, IntArray
from auditkit.replay.backend import Backend
from auditkit.replay.keeper import Keeper
from auditkit.replay.layout import Layout, products
from auditkit.replay.memory import waiting_inputs, waiting_sums
from auditkit.replay.once import Once
from auditkit.replay.sizes import sizes_of
from auditkit.replay.spilled import SpilledTensors
from auditkit.store.progress import Clock, Progress, Silent, SystemClock
from auditkit.store.spill import Damaged, Spill
from auditkit.version import version

T = TypeVar("T")

LONG = 1e13  # multiplications of a step from which on it is worth keeping what is done


@dataclass(frozen=True)
class Planned(Backend):
    """The steps of another back end under a layout.

    cache     where files go that are not needed for long
    program   which program this is: another one does not go on with what this one has kept
    stage     told what part of a micro-batch begins (auditkit/model/stages.py)
    again     the layout of a second replay, while main memory of the first is held
    begun     the steps that were begun: only a first replay goes on from what was kept
    other     whether this is the plan of a second replay alone
    """

    inner: Backend = field(kw_only=True)
    layout: Layout = field(kw_only=True)
    shapes: Mapping[str, tuple[int, ...]] = field(kw_only=True)  # of the model's parameters
    cache: Callable[[], Path] = field(kw_only=True)
    program: Callable[[], Digest] = field(default=lambda: content_digest(version().encode("ascii")), kw_only=True)
    progress: Progress = field(default_factory=Silent, kw_only=True)
    clock: Clock = field(default_factory=SystemClock, kw_only=True)
    stage: Callable[[str], None] = field(default=lambda _: None, kw_only=True)
    again: Callable[[Layout], Layout] = field(default=lambda first: first, kw_only=True)
    begun: set[Digest] = field(default_factory=set, kw_only=True, compare=False)
    other: bool = field(default=False, kw_only=True)

    @property
    def holds(self) -> bool:
        """As Backend: whether states are in memory."""
        return not self.layout.plan.pieces

    def self_test(self) -> None:
        """As Backend."""
        self.inner.self_test()

    @property
    def answers_in_between(self) -> bool:
        """As Backend."""
        return self.inner.answers_in_between

    def repeats(self, recipe: Recipe) -> bool:
        """As Backend: not under a plan of its own, which cuts tables elsewhere; not where a first replay may go on from
        what was kept, whose groups begin with another micro-batch, and where it is time to keep something, before
        which a card is asked for what it has left to tell.
        """
        return not self.other and not is_long(recipe)

    def known_answer(self, name: str) -> None:
        """As Backend."""
        self.inner.known_answer(name)

    def forget(self) -> None:
        """As Backend."""
        self.inner.forget()

    def release(self) -> None:
        """As Backend."""
        self.inner.release()

    def second(self) -> Backend:
        """As Backend: under a plan for the main memory that there is then. Any plan gives the same bits."""
        layout = self.again(self.layout)
        if layout.plan == self.layout.plan:
            return self
        self.progress.note(f"less main memory is left for the second replay: {layout.plan.describe()}")
        return replace(self, layout=layout, other=True)

    def describe(self) -> dict[str, str]:
        """As Backend, and the plan where it is not the plain one."""
        return self.inner.describe() if self.holds else {**self.inner.describe(), "plan": self.layout.plan.describe()}

    def on_device(self, work: Callable[[], T]) -> T:
        """As Backend."""
        return self.inner.on_device(work)

    def host(self, state: State) -> State:
        """As Backend; tensors that are made when they are asked for are made on the device."""
        if state.held:
            return self.inner.host(state)
        params, adam_m, adam_v = (_OnDevice(self.inner, state.role(role)) for role in ROLES)
        return State(state.step, params, adam_m, adam_v, found=state.found)

    def let_go(self, state: State) -> None:
        """As Backend; with a plan, of the parameters that it has put into memory. Files stay: see memory.py."""
        if not self.holds and isinstance(state.params, dict):
            state.params.clear()
        self.inner.let_go(state)

    def place(self, state: State) -> State:
        """As Backend; with a plan, what a step reads again and again is put where it wants it. Raises Damaged."""
        if self.holds:
            return self.inner.place(state)
        return self.on_device(lambda: self._placed(state))

    def step(
        self,
        state: State,
        tokens: IntArray,
        recipe: Recipe,
        *,
        on_micro_batch: Callable[[int], None] | None = None,
        work_key: bytes | None = None,
        room: Room | None = None,
    ) -> tuple[State, StepResult]:
        """As Backend.step. A file that comes back with other bytes makes the step begin anew, once."""
        if self.holds and not is_long(recipe):
            return self.inner.step(state, tokens, recipe, on_micro_batch=on_micro_batch, work_key=work_key)
        told = None if on_micro_batch is None else Once(on_micro_batch)
        begun = state if self.holds or _is_placed(state) else self.place(state)
        try:
            return self._one(begun, tokens, recipe, told, work_key, resume=True)
        except Damaged as error:
            self.progress.note(f"{error.message}; the step begins anew")
        return self._one(begun, tokens, recipe, told, work_key, resume=False)

    def _one(
        self,
        state: State,
        tokens: IntArray,
        recipe: Recipe,
        told: Callable[[int], None] | None,
        work_key: bytes | None,
        *,
        resume: bool,
    ) -> tuple[State, StepResult]:
        plan = self.layout.plan
        key = self._key(state, tokens, recipe)
        first = key not in self.begun
        self.begun.add(key)
        try:
            spill = Spill.open(self.cache(), key, resume=resume and first)
        except Unsupported as error:
            if not self.holds:
                raise
            self.progress.note(f"nothing is kept to go on from: {error.message}")
            return self.inner.step(state, tokens, recipe, on_micro_batch=told, work_key=work_key)
        moved = Moved(spill, self.ops)
        keeper = self._keeper(spill, moved, recipe)
        inputs = self._shelf(plan.inputs, waiting_inputs(recipe, plan), moved)
        sums = self._shelf(plan.sums, waiting_sums(recipe), moved)
        if plan.table_sums != plan.sums:
            sums = Divided(self._shelf(plan.table_sums, waiting_sums(recipe), moved), sums, _is_of_table)
        room = Room(plan, inputs, sums, keeper if is_long(recipe) else None, self.stage)
        try:
            found = self.inner.step(state, tokens, recipe, on_micro_batch=told, work_key=work_key, room=room)
        except (NonFinite, MachineFault):  # after others, an interruption or a full disk, it can be gone on
            spill.finish()
            raise
        spill.finish()
        return found

    def _keeper(self, spill: Spill, moved: Moved, recipe: Recipe) -> Keeper:
        """What keeps the sums that do not lie on the disk anyway."""
        plan, sizes = self.layout.plan, sizes_of(recipe, cuda=False)
        there = plan.pieces and plan.sums == "disk"
        return Keeper(
            spill,
            moved,
            self.progress,
            self.clock,
            in_place=there and plan.table_sums == "disk",
            size=sizes.sum_bytes * (sizes.tables * sizes.table if there else sizes.parameters),
            apart=_is_of_table if there else lambda key: True,
        )

    def _shelf(self, place: Place, most: int, disk: Shelf) -> Shelf:
        if place == "disk":
            return disk
        return self.inner.host_shelf(most) if place == "host" else InMemory()

    def _key(self, state: State, tokens: IntArray, recipe: Recipe) -> Digest:
        """The name of a step's work: whoever does the same may go on with it, and nobody else."""
        digests = self.on_device(lambda: state_digests(state, recipe, self.ops))
        text: canonical.Value = {
            "batch": content_digest(tokens.astype("<i8")),
            "program": self.program(),
            "recipe": recipe.digest(),
            "state": digests.root(state.step),
        }
        return content_digest(canonical.dumps(text, what="spill key"))

    def _placed(self, state: State) -> State:
        """Parameters to memory or to files. Moments stay where they are, if that is in files of their own."""
        brought = state.held  # then all of it goes to files, for arrays of the host are not what the ops take
        if brought:
            state = self.inner.host(state)
        roles: dict[str, Mapping[str, F32]] = {role: state.role(role) for role in ROLES}
        for role, tensors in roles.items():
            if role == "param" and self.layout.plan.params != "disk":
                roles[role] = {name: self.inner.waiting(tensors[name]) for name in tensors}
            elif role == "param" or brought or isinstance(tensors, UpdatedTensors):
                roles[role] = SpilledTensors(self._folder(state, role), role, self.shapes).take(tensors)
        for role in ROLES:
            if isinstance(made := state.role(role), UpdatedTensors):
                made.read_from(roles[role])  # whoever still has the state would keep the sums through the next step
        return State(state.step, roles["param"], roles["adam_m"], roles["adam_v"], found=state.found)

    def _folder(self, state: State, role: str) -> Spill:
        name = content_digest(f"{role} {state.step}".encode("ascii"))
        return Spill.open(self.cache(), name, resume=False)


def is_long(recipe: Recipe) -> bool:
    """Whether a step takes so long that what is done is worth keeping."""
    return 3 * recipe.batch.micro_batches * sum(products(sizes_of(recipe, cuda=False))) >= LONG


def _is_of_table(key: str) -> bool:
    """Whether a piece of sums is one of a vocabulary table's."""
    return key.rpartition(".")[0] in (EMBED, HEAD)


def _is_placed(state: State) -> bool:
    return isinstance(state.params, (dict, SpilledTensors))


class _OnDevice(HostTensors):
    """Tensors that are made when they are asked for, with a device as the current one."""

    def __init__(self, backend: Backend, tensors: Mapping[str, F32]) -> None:
        self._backend, self._tensors = backend, tensors

    def __getitem__(self, name: str) -> F32:
        return self._backend.on_device(lambda: self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def pieces(self, name: str, sizes: Sequence[int]) -> Iterator[F32]:
        """As HostTensors."""
        made = flat_pieces(self._tensors, name, sizes)
        for _ in sizes:
            yield self._backend.on_device(lambda: next(made))
