"""Explain one step that does not match, quantity by quantity in the order in which a step computes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from auditkit.explain import scalars, sums, update_guesses
from auditkit.explain.bench import Bench, Variant, root, summed
from auditkit.explain.findings import Standing, Story
from auditkit.explain.micro import Micro
from auditkit.explain.patterns import StatePattern, state_pattern
from auditkit.explain.scalars import Named
from auditkit.explain.search import moved_rows
from auditkit.explain.solve import solved
from auditkit.explain.subject import Start
from auditkit.explain.sums import Parts, SumGuess
from auditkit.explain.surroundings import Surroundings
from auditkit.explain.update import ROLES, Guess, Setting, Target, Three, kept, left
from auditkit.formats.bits import f32_bits, f32_from_bits
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.record import StepRecord
from auditkit.formats.skips import NO_RESULT, skip_of
from auditkit.formats.tensors import tensor_digest
from auditkit.model.divergence import exceeds, without_result
from auditkit.model.params import EMBED, parameter_table
from auditkit.model.step import leaf
from auditkit.model.totals import loss_total
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32
from auditkit.numerics.nonfinite import NonFinite
from auditkit.replay.published import StoredState

TAKEN = "the update taken though the norm of the gradient skips the step"


@dataclass
class Examination:
    """One step under examination; `examine` fills the story."""

    start: Start
    record: StepRecord
    bench: Bench
    around: Surroundings
    story: Story
    quick: bool
    without: str = ""  # why the declared step, which the recipe skips for it, has no result; "" for one that has
    pattern: StatePattern | None = None

    def __post_init__(self) -> None:
        self.names = [spec.name for spec in parameter_table(self.start.recipe.model)]
        self.plain = Variant.of(self.start)
        self.skipped = skip_of(self.start.recipe, self.record.gradient, self.record.norm)
        scheduled = reference.learning_rate(self.start.recipe.schedule, self.start.step)
        self.scheduled = np.float32(0 if self.skipped else scheduled)  # what the record must name

    def examine(self) -> None:
        """Go through the quantities until one can neither be reproduced nor done without."""
        if self.without:
            self._declared_without()
        elif self.skipped == NO_RESULT:
            self._without_result()
        else:
            try:
                self._quantities()
            except NonFinite as error:  # the declared step has a result, so this is of what the publisher claims
                self.story.add("step", Standing.DIFFERENT, f"what is published leads to no result: {error.message}")

    def _declared_without(self) -> None:
        """The declared step has no result."""
        if self.skipped == NO_RESULT:
            words = "the step has no result, as the record says; what else is published is not what is declared then"
        else:
            words = f"the record claims a result, but the declared step has none: {self.without}"
        self.story.add("step", Standing.DIFFERENT, words)

    def _without_result(self) -> None:
        """The record says that the step was skipped for having no result, but it has one."""
        words = "the record says that the step has no result, and was skipped; it has one"
        none = without_result(self.start.recipe, "")
        passed = Target(self.start, self.record, None).is_state(replace(self.start.state, step=self.start.step + 1))
        zeros = (self.record.loss, self.record.norm, self.record.lr) == (0, 0, 0)
        if passed and zeros and tuple(self.around.leaves) in ((), none.leaves):
            self.story.found("skipped", "the step skipped as one without a result", "state")
            self.story.add("step", Standing.REPRODUCED, words)
        else:
            self.story.add("step", Standing.DIFFERENT, f"{words}; nor is the rest of the record that of a skipped step")

    def _quantities(self) -> None:
        parts = Parts(self.bench, [self.plain] * self.bench.count)
        ours = [leaf(part, reference) for part in parts]
        theirs = self.around.leaves
        declared = summed(iter(parts), self.start.recipe)
        self.pattern = self._state_pattern(declared)
        if theirs:
            moved = self._moved(declared)
            micro = Micro(self.bench, self.plain, theirs, ours, self.around, self.story, self.quick, moved)
            if not micro.explain():
                self._loss(theirs)
                self._without_leaves(declared)
                return
            if micro.different:
                parts = Parts(self.bench, micro.variants)
                declared = summed(iter(parts), self.start.recipe)
        self._loss(theirs or ours)
        rounded = self._gradient(parts, declared)
        if rounded is None:
            self._unreproduced(declared)
        else:
            self._update(rounded)

    # The published state beside the computed one

    def _recorded(self, rounded: Sequence[F32]) -> Setting:
        """The update with the norm and the learning rate that the record names; none where its norm skips the step."""
        norm, lr = (np.float32(f32_from_bits(bits)) for bits in (self.record.norm, self.record.lr))
        setting = Setting.declared(self.start, rounded, norm, lr)
        return replace(setting, finish=left) if self.skipped else setting

    def _state_pattern(self, rounded: Sequence[F32]) -> StatePattern | None:
        if self.around.published is None:
            return None
        norm = reference.norm_from_squares([reference.squares(rounded)])
        lr = np.float32(reference.learning_rate(self.start.recipe.schedule, self.start.step))
        setting = Setting.declared(self.start, rounded, norm, lr)
        if exceeds(norm, self.start.recipe):
            setting = replace(setting, finish=left)
        computed = Target(self.start, self.record, None).state(setting)
        found = state_pattern(self.around.published, computed, self.start.state)
        return found if found.tensors else None

    def _moved(self, rounded: Sequence[F32]) -> list[int] | None:
        """Token ids whose rows of the embedding got another first moment than computed."""
        if self.around.published is None or self.skipped:
            return None
        theirs = self.around.published.tensor(("adam_m", EMBED))
        return moved_rows(theirs, self._recorded(rounded).tensor(self.names.index(EMBED), EMBED)[1])

    # The quantities

    def _standing(self) -> Standing:
        """That of a quantity which comes out: by what is declared, by the causes found, or by what is published."""
        if any(q.standing in (Standing.DIFFERENT, Standing.UNKNOWN) for q in self.story.quantities):
            return Standing.FOLLOWS
        same = not self.story.causes and all(q.standing is Standing.SAME for q in self.story.quantities)
        return Standing.SAME if same else Standing.REPRODUCED

    def _number(self, name: str, own: np.float32, recorded: int, others: Iterable[Named], detail: str) -> None:
        """A number of the record: as computed, or one of others, or neither."""
        if f32_bits(float(own)) == recorded:
            self.story.add(name, self._standing())
            return
        for words, value in others:
            if value.view(np.uint32) == recorded:
                self.story.found(name, words, name)
                self.story.add(name, Standing.REPRODUCED, detail)
                return
        self.story.add(name, Standing.DIFFERENT, detail)

    def _loss(self, leaves: Sequence[MicroBatchLeaf]) -> None:
        try:
            own = reference.mean_loss(loss_total(leaves), self.plain.total_targets)
        except NonFinite as error:
            words = f"the losses of the published leaves have no sum: {error.message}"
            self.story.add("loss", Standing.DIFFERENT, words)
            return
        detail = "the record names another loss than its micro-batches give"
        self._number("loss", own, self.record.loss, scalars.losses(self.start, leaves), detail)

    def _without_leaves(self, declared: list[F32]) -> None:
        """Go on where a leaf is not reproduced: the gradient may be the declared one all the same."""
        if root(declared, self.names) == self.record.gradient:
            self.story.add("gradient", Standing.SAME, "right, though a leaf is not")
            self._update(declared)
        else:
            self._unreproduced(declared)

    def _gradient(self, parts: Parts, declared: list[F32]) -> list[F32] | None:
        """The published gradient, reproduced; None if it is not."""
        if root(declared, self.names) == self.record.gradient:
            self.story.add("gradient", self._standing())
            return declared
        detail = "every micro-batch is right, their sum is not"
        for guess in self._sums(parts, declared):
            self.story.tried[f"gradient, {guess.key}"] += 1
            if sums.matches(guess, self.names, self.record.gradient):
                self.story.found(guess.key, guess.words, "gradient")
                self.story.add("gradient", Standing.REPRODUCED, detail)
                return guess.rounded
        self.story.add("gradient", Standing.DIFFERENT, detail)
        return None

    def _sums(self, parts: Parts, declared: list[F32]) -> Iterator[SumGuess]:
        yield from sums.guesses(parts, declared, self.names, self.quick)
        older = self.around.older()
        if older is not None:
            yield from sums.with_older(sums.total_of(parts), older, self.start.step)

    def _unreproduced(self, declared: Sequence[F32]) -> None:
        """Say what the published state tells of a gradient that could not be reproduced."""
        if "gradient" not in {quantity.name for quantity in self.story.quantities}:
            self.story.add("gradient", Standing.UNKNOWN, self._by_moments(declared))
        self.story.add("norm", Standing.UNKNOWN)
        self._rate()
        self.story.add("state", Standing.UNKNOWN)

    def _by_moments(self, declared: Sequence[F32]) -> str:
        """Which tensors of the gradient are the declared ones, by the published moments, in the order of the pass."""
        if self.around.published is None:
            return ""
        setting, right = self._recorded(declared), set()
        digests = {entry.order: entry.digest for entry in self.around.published.document.tensors}
        for i, name in enumerate(self.names):
            moments = zip(ROLES[1:], setting.tensor(i, name)[1:], strict=True)
            if all(tensor_digest(array) == digests[role, name] for role, array in moments):
                right.add(name)
        order = self.bench.backward_order(self.plain)
        wrong = [name for name in order if name not in right]
        if not wrong or not right:
            return f"by the published moments it is {'right' if right else 'wrong'} in every parameter"
        return (
            f"by the published moments it is right in {len(right)} of {len(order)} parameters; in the order of the "
            f"backward pass that of {wrong[0]} departs first"
        )

    def _rate(self) -> None:
        schedule, step = self.start.recipe.schedule, self.start.step
        if f32_bits(float(self.scheduled)) == self.record.lr:
            self.story.add("lr", Standing.SAME)
            return
        if self.skipped and f32_bits(reference.learning_rate(schedule, step)) == self.record.lr:
            self.story.found("not-skipped", TAKEN, "lr")
            self.story.add("lr", Standing.REPRODUCED, "the record names the learning rate of a step that is taken")
            return
        words = update_guesses.rate_words(schedule, step, np.float32(f32_from_bits(self.record.lr)))
        self.story.found("learning-rate", words, "lr")
        self.story.add("lr", Standing.REPRODUCED, "the record names another learning rate than the schedule gives")

    def _update(self, rounded: Sequence[F32]) -> None:
        own = reference.norm_from_squares([reference.squares(rounded)])
        before = (
            np.float32(f32_from_bits(self.around.run.record(self.start.step - 1).norm)) if self.start.step else None
        )
        others = scalars.norms(self.start, rounded, before)
        self._number("norm", own, self.record.norm, others, "the gradient is right, its norm is not")
        self._rate()
        base, stored = self._recorded(rounded), self.around.published
        target = Target(self.start, self.record, stored.document if stored else None)
        if target.begin(base):
            self.story.add("state", self._standing())
            return
        detail = "gradient, norm and learning rate are accounted for, the update is not"
        found = self._reproduced(target, base)
        if found is None:
            self.story.add("state", Standing.DIFFERENT, detail)
        else:
            self.story.found(*found, "state")
            self.story.add("state", Standing.REPRODUCED, detail)

    def _reproduced(self, target: Target, base: Setting) -> tuple[str, str] | None:
        """The key and the words of what gives the published state."""
        for guess in self._updates(target, base):
            self.story.tried[f"state, {guess.key}"] += 1
            only = target.explains(guess.setting)
            if only is not None:
                return guess.key, f"{guess.words}, for {_some(only)} only" if only else guess.words
        if self.around.published is None:
            names = target.frozen(base)
            return None if names is None else ("not-updated", f"no update of {_some(names)}")
        only_one = self.pattern.tensors[0].difference if self.pattern and len(self.pattern.tensors) == 1 else None
        if only_one is None or only_one.differing != 1:
            return None
        # Any change of one element can be had by changing it, so this says where, not why.
        bit = (int(only_one.left_bits, 16) ^ int(only_one.right_bits, 16)).bit_count() == 1
        words = f"one element changed after the update, {only_one.where}"
        words += f" ({only_one.right_bits} became {only_one.left_bits}{', one bit' if bit else ''})"
        return "bit-flip" if bit else "element", words

    def _updates(self, target: Target, base: Setting) -> Iterator[Guess]:
        if self.skipped:
            for lr in (np.float32(reference.learning_rate(self.start.recipe.schedule, self.start.step)), base.lr):
                yield Guess("not-skipped", TAKEN, replace(base, lr=lr, finish=kept))
            return
        yield from update_guesses.guesses(self.start, base, self.around.previous())
        norm = reference.norm_from_squares([reference.squares(base.rounded)])
        clip = reference.clip_factor(norm, np.float32(self.start.recipe.optimizer.clip_norm))
        if clip != base.clip:
            words = "clipping by the norm of the gradient, not by that of the record"
            yield Guess("clipping", words, replace(base, clip=clip))
        stored = self.around.published
        if stored is not None:
            yield from solved(target, base, lambda name: _tensors(stored, name))


def _tensors(stored: StoredState, name: str) -> Three:
    """The published parameter and moments of one name."""
    p, m, v = (stored.tensor((role, name)) for role in ROLES)
    return p, m, v


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
