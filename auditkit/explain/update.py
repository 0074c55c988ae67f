"""The update of a step taken in other ways, and whether one gives the published state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from auditkit.explain.subject import Start
from auditkit.formats.digest import Digest
from auditkit.formats.record import StepRecord
from auditkit.formats.state import StateDocument
from auditkit.formats.tensors import tensor_digest
from auditkit.model.params import ParamSpec, parameter_table
from auditkit.model.state import State, digests_of, state_digests
from auditkit.numerics import adamw, reference
from auditkit.numerics.adamw import AdamWScalars
from auditkit.numerics.arrays import F32

Three = tuple[F32, F32, F32]  # parameter, first and second moment
ROLES = ("param", "adam_m", "adam_v")


def as_is(scalars: AdamWScalars) -> AdamWScalars:
    """The scalars of the step, unchanged."""
    return scalars


def kept(before: Three, after: Three) -> Three:
    """What the update gives, unchanged."""
    return after


def left(before: Three, after: Three) -> Three:
    """What was there before: no update."""
    return before


@dataclass(frozen=True, eq=False)
class Setting:
    """An update: from which state, with which gradient (float32, in the order of the parameters) and which numbers.

    update    its number in the bias correction, 1 for the first
    decayed   for each parameter whether weight decay applies
    coupled   weight decay added to the gradient, as in Adam with L2 regularisation
    scalars   changes the scalars; finish  changes what comes out for one tensor, given what was there before
    """

    state: State
    rounded: Sequence[F32]
    lr: np.float32
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    update: int
    clip: np.float32
    decayed: tuple[bool, ...]
    coupled: float = 0.0
    scalars: Callable[[AdamWScalars], AdamWScalars] = as_is
    finish: Callable[[Three, Three], Three] = kept

    @classmethod
    def declared(cls, start: Start, rounded: Sequence[F32], norm: np.float32, lr: np.float32) -> Setting:
        """The update that the recipe declares, with the norm and learning rate of the record."""
        opt, specs = start.recipe.optimizer, parameter_table(start.recipe.model)
        clip = reference.clip_factor(norm, np.float32(opt.clip_norm))
        return cls(
            start.state, rounded, lr, opt.beta1, opt.beta2, opt.eps, opt.weight_decay, start.step + 1, clip,
            tuple(spec.decayed for spec in specs),
        )  # fmt: skip

    def numbers(self) -> AdamWScalars:
        """The scalars of the update."""
        return self.scalars(
            reference.adamw_scalars(
                lr=self.lr,
                beta1=self.beta1,
                beta2=self.beta2,
                eps=self.eps,
                weight_decay=self.weight_decay,
                update=self.update,
            )
        )

    def before(self, name: str) -> Three:
        """Parameter and moments that the update begins from."""
        return self.state.params[name], self.state.adam_m[name], self.state.adam_v[name]

    def tensor(self, index: int, name: str) -> Three:
        """The new parameter and moments of one parameter."""
        p, m, v = self.before(name)
        grad = self.rounded[index]
        if self.coupled:
            grad = grad + np.float32(self.coupled) * p
        with np.errstate(all="ignore"):  # a guess may lead beyond binary32
            made = adamw.adamw(p, m, v, grad, clip=self.clip, scalars=self.numbers(), decayed=self.decayed[index])
            return self.finish((p, m, v), made)


@dataclass(frozen=True)
class Guess:
    """An update taken otherwise: the key of its kind, what was done in words, and the setting."""

    key: str
    words: str
    setting: Setting


class Target:
    """The published state after the step: its root, and its tensors by digest where it is published."""

    def __init__(self, start: Start, record: StepRecord, document: StateDocument | None) -> None:
        self.start, self.record, self.document = start, record, document
        self.specs: tuple[ParamSpec, ...] = parameter_table(start.recipe.model)
        self.digests = {entry.order: entry.digest for entry in document.tensors} if document else {}
        self._base: dict[str, tuple[Digest, ...]] = {}
        self._wrong: list[int] = []

    def state(self, setting: Setting) -> State:
        """The whole state after an update."""
        made = [setting.tensor(i, spec.name) for i, spec in enumerate(self.specs)]
        names = [spec.name for spec in self.specs]
        roles = (dict(zip(names, role, strict=True)) for role in zip(*made, strict=True))
        return State(self.start.step + 1, *roles)

    def is_state(self, state: State) -> bool:
        """Whether a state is the published one."""
        found = state_digests(state, self.start.recipe, cursor=self.start.cursor)
        return found.root(self.start.step + 1) == self.record.state_after

    def begin(self, declared: Setting) -> bool:
        """Whether the declared update gives the published state; what differs is what `explains` looks at."""
        self._base = {spec.name: self._digests(declared, i) for i, spec in enumerate(self.specs)}
        self._wrong = [i for i, spec in enumerate(self.specs) if self._base[spec.name] != self._published(spec)]
        return not self._wrong if self.document else self.is_state(self.state(declared))

    def wrong(self) -> list[str]:
        """Parameters of which the declared update does not give the published tensors."""
        return [self.specs[i].name for i in self._wrong] if self.document else []

    def explains(self, setting: Setting) -> tuple[str, ...] | None:
        """The parameters that an update must have been taken for to give the published state; None: it does not.

        Empty where it was taken for all. Where the state is not published, only all, or one of them, can be told.
        """
        if self.document is None:
            return () if self.is_state(self.state(setting)) else None
        # The tensors of least size first: most guesses end there.
        for i in sorted(self._wrong, key=lambda i: setting.rounded[i].size):
            if self._digests(setting, i) != self._published(self.specs[i]):
                return None
        right = [i for i in range(len(self.specs)) if i not in self._wrong]
        if all(self._digests(setting, i) == self._published(self.specs[i]) for i in right):
            return ()
        return tuple(self.specs[i].name for i in self._wrong)

    def _digests(self, setting: Setting, index: int) -> tuple[Digest, ...]:
        return tuple(map(tensor_digest, setting.tensor(index, self.specs[index].name)))

    def _published(self, spec: ParamSpec) -> tuple[Digest, ...]:
        return tuple(self.digests.get((role, spec.name), "") for role in ROLES)

    def frozen(self, declared: Setting) -> tuple[str, ...] | None:
        """Without a published state: the one parameter, or kind, or layer, that was left as it was, by roots alone."""
        new: dict[tuple[str, str], Digest] = {}
        old: dict[tuple[str, str], Digest] = {}
        for spec in self.specs:
            new |= {(role, spec.name): digest for role, digest in zip(ROLES, self._base[spec.name], strict=True)}
            before = zip(ROLES, declared.before(spec.name), strict=True)
            old |= {(role, spec.name): tensor_digest(array) for role, array in before}
        for names in _groups(self.specs):
            mixed = {key: old[key] if key[1] in names else digest for key, digest in new.items()}
            found = digests_of(self.start.recipe, mixed, cursor=self.start.cursor)
            if found.root(self.start.step + 1) == self.record.state_after:
                return names
        return None


def _groups(specs: Sequence[ParamSpec]) -> Sequence[tuple[str, ...]]:
    """Single parameters, those of a kind, those of a layer."""
    single = [(spec.name,) for spec in specs]
    kinds = [tuple(spec.name for spec in specs if spec.kind == kind) for kind in sorted({s.kind for s in specs})]
    layers = sorted({spec.name.split(".")[2] for spec in specs if spec.name.startswith("model.layers.")}, key=int)
    by_layer = [tuple(s.name for s in specs if s.name.startswith(f"model.layers.{layer}.")) for layer in layers]
    return [*single, *kinds, *by_layer]


def uncorrected(scalars: AdamWScalars, lr: np.float32, *, first: bool = True, second: bool = True) -> AdamWScalars:
    """Scalars without the bias correction of either moment."""
    if first:
        scalars = replace(scalars, step_size=lr)
    return replace(scalars, sqrt_correction2=np.float32(1)) if second else scalars
