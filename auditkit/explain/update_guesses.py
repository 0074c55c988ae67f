"""What may have gone otherwise in an update: learning rate, weight decay, clipping, moments, what it was applied to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from auditkit.errors import AuditkitError
from auditkit.explain.subject import Start
from auditkit.explain.update import Guess, Setting, Three, left, uncorrected
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import ScheduleConfig
from auditkit.model.state import State
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32

Change = Callable[[F32], F32]

DECAYS = (0.0, 0.1, 0.01, 0.001, 0.05, 0.2, 1e-4)
BETAS = ((0.9, 0.999), (0.9, 0.95), (0.9, 0.98), (0.9, 0.99), (0.95, 0.95), (0.8, 0.95), (0.0, 0.95), (0.9, 0.9))
EPSILONS = (1e-8, 1e-6, 1e-5, 1e-7, 1e-10, 1e-12, 1e-15, 1e-4)
FACTORS = (2.0, 0.5, 10.0, 0.1, 3.0, 4.0, 0.25, 0.0, -1.0)


def guesses(start: Start, base: Setting, previous: State | None) -> Iterator[Guess]:
    """All guesses about the update but those that are solved for, likely ones first.

    base      the declared update
    previous  the state before the step before, where it can be had
    """
    yield from _rates(start, base)
    yield from _decay(start, base)
    yield from _clipping(start, base)
    yield from _adam(start, base)
    yield from _moments(base)
    yield from _applied(base, previous)
    yield from _rounding(base)


def rate_words(schedule: ScheduleConfig, step: int, rate: np.float32) -> str:
    """A learning rate and how it relates to the recipe's."""
    own = float(np.float32(reference.learning_rate(schedule, step)))
    said = f"the learning rate {float(rate):.9g} instead of {own:.9g}"
    for words, other in named_rates(schedule, step):
        if np.float32(other) == rate:
            return f"{said} ({words})"
    return f"{said} ({float(rate) / own:.6g} times)" if own else said


def named_rates(schedule: ScheduleConfig, step: int) -> Iterator[tuple[str, float]]:
    """Learning rates that another reading of the schedule gives, with that reading."""
    own = reference.learning_rate(schedule, step)
    for shift in (-1, 1, -2, 2):
        if step + shift >= 0:
            rate = reference.learning_rate(schedule, step + shift)
            if rate != own:
                yield f"that of step {step + shift}", rate
    yield from ((f"{factor:g} times the recipe's", own * factor) for factor in FACTORS)
    yield "the peak of the schedule", schedule.peak_lr
    yield "the least of the schedule", schedule.min_lr
    for words, other in _schedules(schedule):
        try:
            rate = reference.learning_rate(other, step)
        except AuditkitError:
            continue
        if rate != own:
            yield words, rate


def _schedules(schedule: ScheduleConfig) -> Iterator[tuple[str, ScheduleConfig]]:
    warm, total, decay = schedule.warmup_steps, schedule.total_steps, schedule.decay_steps
    for steps in (warm - 1, warm + 1, 0):
        if 0 <= steps <= total - decay and steps != warm:
            yield f"that of {steps} warm-up steps instead of {warm}", replace(schedule, warmup_steps=steps)
    for steps in (total - 1, total + 1):
        if max(warm + decay, 0) < steps <= LIMITS.steps:
            yield f"that of {steps} steps in all instead of {total}", replace(schedule, total_steps=steps)
    for steps in (decay - 1, decay + 1) if schedule.kind == "wsd" else ():
        if 0 <= steps <= total - warm:
            yield f"that of {steps} decay steps instead of {decay}", replace(schedule, decay_steps=steps)


def _rates(start: Start, base: Setting) -> Iterator[Guess]:
    for words, rate in named_rates(start.recipe.schedule, start.step):
        lr = np.float32(rate)
        said = f"the learning rate {float(lr):.9g} instead of {float(base.lr):.9g} ({words})"
        yield Guess("learning-rate", said, replace(base, lr=lr))


def _decay(start: Start, base: Setting) -> Iterator[Guess]:
    declared, every = start.recipe.optimizer.weight_decay, (True,) * len(base.decayed)
    for value in DECAYS:
        if value != declared:
            words = f"weight decay {value:g} instead of {declared:g}" if value else "weight decay off"
            yield Guess("weight-decay", words, replace(base, weight_decay=value))
    yield Guess("weight-decay", "weight decay on every parameter, norms included", replace(base, decayed=every))
    value = base.weight_decay
    yield Guess(
        "weight-decay", "weight decay added to the gradient", replace(base, weight_decay=0.0, coupled=float(value))
    )
    whole = np.float32(1.0 - value)
    yield Guess(
        "weight-decay",
        "weight decay that the learning rate does not scale",
        replace(base, scalars=lambda s: replace(s, decay=whole)),
    )


def _clipping(start: Start, base: Setting) -> Iterator[Guess]:
    norm = start.recipe.optimizer.clip_norm
    if base.clip != 1:
        yield Guess("clipping", "clipping off", replace(base, clip=np.float32(1)))
    found = np.float32(norm) / base.clip if base.clip != 1 else None  # the norm, but for its rounding
    if found is not None:
        soft = np.float32(norm / (float(found) + 1e-6))
        yield Guess("clipping", "clipping by the norm plus 1e-6", replace(base, clip=soft))
        yield Guess("clipping", "the gradient clipped twice", replace(base, clip=base.clip * base.clip))
    for factor in (0.5, 2.0, 0.1, 10.0):
        clip = np.float32(float(base.clip) * factor)
        yield Guess("clipping", f"the gradient taken {factor:g} times as it is clipped", replace(base, clip=clip))


def _adam(start: Start, base: Setting) -> Iterator[Guess]:
    for beta1, beta2 in (*BETAS, (base.beta2, base.beta1)):
        if (beta1, beta2) != (base.beta1, base.beta2) and beta1 < 1 and beta2 < 1:
            words = f"betas {beta1:g} and {beta2:g} instead of {base.beta1:g} and {base.beta2:g}"
            yield Guess("betas", words, replace(base, beta1=beta1, beta2=beta2))
    for eps in EPSILONS:
        if np.float32(eps) != np.float32(base.eps):
            yield Guess("eps", f"eps {eps:g} instead of {base.eps:g}", replace(base, eps=eps))
    lr = base.lr
    for words, one in (
        ("no bias correction", replace(base, scalars=lambda s: uncorrected(s, lr))),
        ("no bias correction of the first moment", replace(base, scalars=lambda s: uncorrected(s, lr, second=False))),
        ("no bias correction of the second moment", replace(base, scalars=lambda s: uncorrected(s, lr, first=False))),
    ):
        yield Guess("bias-correction", words, one)
    for shift in (-1, 1):
        if base.update + shift > 0:
            words = f"the bias correction of update {base.update + shift} instead of {base.update}"
            yield Guess("bias-correction", words, replace(base, update=base.update + shift))
    if base.update > 1:
        yield Guess("bias-correction", "the bias correction of the first update", replace(base, update=1))


def _moments(base: Setting) -> Iterator[Guess]:
    state = base.state
    zeros = {name: np.zeros_like(array) for name, array in state.params.items()}
    yield Guess(
        "moments", "the first moment zeroed before the update", replace(base, state=replace(state, adam_m=zeros))
    )
    yield Guess(
        "moments", "the second moment zeroed before the update", replace(base, state=replace(state, adam_v=zeros))
    )
    both = replace(state, adam_m=zeros, adam_v=zeros)
    yield Guess("moments", "both moments zeroed before the update", replace(base, state=both))
    fresh = replace(base, state=both, update=1)
    yield Guess("moments", "a fresh optimiser: both moments zeroed, its updates counted anew", fresh)

    def unkept(before: Three, after: Three) -> Three:
        return after[0], before[1], before[2]

    yield Guess("moments", "the moments not kept after the update", replace(base, finish=unkept))


def _applied(base: Setting, previous: State | None) -> Iterator[Guess]:
    def only_moments(before: Three, after: Three) -> Three:
        return before[0], after[1], after[2]

    yield Guess("not-updated", "no update: the state before, under the next number", replace(base, finish=left))
    yield Guess("not-updated", "parameters not updated, moments updated", replace(base, finish=only_moments))
    zero = [np.zeros_like(grad) for grad in base.rounded]
    yield Guess("gradient-zero", "a gradient of zero", replace(base, rounded=zero))
    yield Guess(
        "gradient-sign",
        "the gradient with the other sign",
        replace(base, rounded=[np.negative(g) for g in base.rounded]),
    )
    twice = _again(base)
    yield Guess("twice", "the update applied twice", twice)
    if previous is not None:
        words = f"the update applied to a stale state, that before step {base.state.step - 1}"
        yield Guess("stale-state", words, replace(base, state=previous))
        stale = replace(base.state, adam_m=previous.adam_m, adam_v=previous.adam_v)
        yield Guess("stale-state", "the moments stale by one step", replace(base, state=stale))
        stale = replace(base.state, params=previous.params)
        yield Guess("stale-state", "the parameters stale by one step", replace(base, state=stale))
        for words, role in (("first", "adam_m"), ("second", "adam_v")):
            stale = replace(base.state, **{role: getattr(previous, role)})
            yield Guess("stale-state", f"the {words} moment stale by one step", replace(base, state=stale))


def _again(base: Setting) -> Setting:
    names = list(base.state.params)
    made = [base.tensor(i, name) for i, name in enumerate(names)]
    roles = (dict(zip(names, role, strict=True)) for role in zip(*made, strict=True))
    return replace(base, state=State(base.state.step, *roles))


def _rounding(base: Setting) -> Iterator[Guess]:
    for words, change in (
        ("bfloat16, to nearest", _bfloat16),
        ("bfloat16, cut off", _cut),
        ("binary16", lambda x: x.astype(np.float16).astype(np.float32)),
    ):
        yield Guess("rounded", f"the new parameters rounded to {words}", replace(base, finish=_parameters(change)))
        yield Guess("rounded", f"the new moments rounded to {words}", replace(base, finish=_moments_by(change)))
    flush = replace(base, finish=lambda _, after: (flushed(after[0]), flushed(after[1]), flushed(after[2])))
    yield Guess("flush-to-zero", "subnormal results flushed to zero", flush)
    both = replace(flush, rounded=[flushed(g) for g in base.rounded])
    yield Guess("flush-to-zero", "subnormal numbers flushed to zero", both)


def _parameters(change: Change) -> Callable[[Three, Three], Three]:
    return lambda _, after: (change(after[0]), after[1], after[2])


def _moments_by(change: Change) -> Callable[[Three, Three], Three]:
    return lambda _, after: (after[0], change(after[1]), change(after[2]))


def _bfloat16(x: F32) -> F32:
    word = np.ascontiguousarray(x).view(np.uint32)
    rounded = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def _cut(x: F32) -> F32:
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def flushed(x: F32) -> F32:
    """The array with zeros of their sign in the place of subnormal numbers."""
    word = np.ascontiguousarray(x).view(np.uint32)
    small = (word & np.uint32(0x7F800000)) == 0
    return np.where(small, word & np.uint32(0x80000000), word).view(np.float32)
