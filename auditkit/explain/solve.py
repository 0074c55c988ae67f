"""Solve for one number of an update from the published tensors: each element bounds it, all together leave a few words.

The equations hold in exact numbers but for the roundings of the update, each at most half a unit in the last place; so
every element gives an interval, and their intersection holds the number if there is one. Each binary32 number in it is
then tried on the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from auditkit.explain.subject import Start
from auditkit.explain.update import Guess, Setting, Target, Three
from auditkit.explain.update_guesses import rate_words
from auditkit.model.state import State
from auditkit.numerics.adamw import AdamWScalars
from auditkit.numerics.arrays import F32
from auditkit.replay.compare import words

F64 = npt.NDArray[np.float64]
MOST = 1 << 13  # numbers tried
_PROBE = 256  # elements on which they are tried first

Read = Callable[[str], Three]  # the published tensors of a parameter


def solved(target: Target, base: Setting, read: Read) -> Iterator[Guess]:
    """Updates with a learning rate, a weight decay or a clip factor that the published tensors ask for."""
    names = [spec.name for spec in target.specs]
    wrong = [names.index(name) for name in target.wrong()]
    published = {i: read(names[i]) for i in wrong}
    ours = {i: base.tensor(i, names[i]) for i in wrong}
    moments = all(_same(published[i][role], ours[i][role]) for i in wrong for role in (1, 2))
    if moments:
        yield from _rates(target.start, base, names, published, ours)
        yield from _decays(base, names, published, ours)
    else:
        yield from _clips(base, names, published)


def _same(a: F32, b: F32) -> bool:
    return bool(np.array_equal(words(a), words(b)))


def _change(base: Setting, made: Three) -> F64:
    """m / (sqrt(v) / c + eps), nearly."""
    s = base.numbers()
    return made[1].astype(np.float64) / (np.sqrt(made[2].astype(np.float64)) / float(s.sqrt_correction2) + float(s.eps))


def _slack(*arrays: F64) -> F64:
    """What the roundings to binary32 can add up to: an ulp of each array, and the least subnormal number."""
    total = np.full(arrays[0].shape, 2.0**-148)
    for array in arrays:
        total += np.abs(array) * 2.0**-22
    return total


def _rates(
    start: Start, base: Setting, names: list[str], published: Mapping[int, Three], ours: Mapping[int, Three]
) -> Iterator[Guess]:
    schedule, step = start.recipe.schedule, start.step
    correction = float(base.lr) / float(base.numbers().step_size) if base.lr else 0.0
    if not correction:
        return
    low, high = -np.inf, np.inf
    for i, theirs in published.items():
        p = base.before(names[i])[0].astype(np.float64)
        change = _change(base, ours[i])
        slope = p * (base.weight_decay if base.decayed[i] else 0.0) + change / correction
        low, high = _narrowed(low, high, p - theirs[0], slope, _slack(p, theirs[0].astype(np.float64)))
    for lr in _between(low, high):
        one = replace(base, lr=lr)
        if _fits(one, names, published):
            yield Guess("learning-rate", rate_words(schedule, step, lr), one)


def _decays(
    base: Setting, names: list[str], published: Mapping[int, Three], ours: Mapping[int, Three]
) -> Iterator[Guess]:
    """The factor of the parameters, 1 - lr * weight_decay, for those that differ."""
    low, high = -np.inf, np.inf
    size = float(base.numbers().step_size)
    for i, theirs in published.items():
        p = base.before(names[i])[0].astype(np.float64)
        change = _change(base, ours[i]) * size
        low, high = _narrowed(low, high, theirs[0] + change, p, _slack(p, theirs[0].astype(np.float64), change))
    rate, declared = float(base.lr), base.numbers().decay
    for factor in _between(low, high):
        one = replace(base, scalars=_decaying(factor))
        if _fits(one, names, published) and rate:
            decay = _shortest((1.0 - float(factor)) / rate, partial(_is_factor, factor, rate))
            words = f"weight decay {decay:.9g} instead of {base.weight_decay:g}"
            yield Guess("weight-decay", f"{words} (factor {float(factor):.9g} instead of {float(declared):.9g})", one)


def _decaying(factor: np.float32) -> Callable[[AdamWScalars], AdamWScalars]:
    return lambda scalars: replace(scalars, decay=factor)


def _is_factor(factor: np.float32, rate: float, decay: float) -> bool:
    return bool(np.float32(1.0 - rate * decay) == factor)


def _clips(base: Setting, names: list[str], published: Mapping[int, Three]) -> Iterator[Guess]:
    s = base.numbers()
    low, high = -np.inf, np.inf
    for i, theirs in published.items():
        m, grad = base.before(names[i])[1].astype(np.float64), base.rounded[i].astype(np.float64)
        kept = m * float(s.beta1)
        slope = grad * float(s.one_minus_beta1)
        low, high = _narrowed(low, high, theirs[1] - kept, slope, _slack(kept, theirs[1].astype(np.float64), slope))
    for clip in _between(low, high):
        one = replace(base, clip=clip)
        if _fits(one, names, published):
            said = f"the gradient multiplied by {float(clip):.9g} instead of {float(base.clip):.9g} by the clipping"
            yield Guess("clipping", said, one)


def _narrowed(low: float, high: float, value: F64, slope: F64, slack: F64) -> tuple[float, float]:
    """Narrow low..high to x with |value - slope * x| <= slack in every element."""
    steep = np.abs(slope) > 0
    if not steep.any():
        return low, high
    at, width = value[steep] / slope[steep], slack[steep] / np.abs(slope[steep])
    return max(low, float((at - width).max())), min(high, float((at + width).min()))


def _between(low: float, high: float) -> Iterator[np.float32]:
    """The binary32 numbers of an interval, if they are not too many; those next to its middle first."""
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        return
    middle = np.float32((low + high) / 2)
    yield middle
    up = down = middle
    for _ in range(MOST // 2):
        up, down = np.nextafter(up, np.float32(np.inf)), np.nextafter(down, np.float32(-np.inf))
        inside = [x for x in (up, down) if low <= float(x) <= high]
        yield from inside
        if not inside:
            return


def _fits(one: Setting, names: list[str], published: Mapping[int, Three]) -> bool:
    """Whether an update gives the published parameter and moments in a few elements of the smallest tensor."""
    i = min(published, key=lambda i: published[i][0].size)
    name, state = names[i], one.state
    cut = ({name: role[name].reshape(-1)[:_PROBE]} for role in (state.params, state.adam_m, state.adam_v))
    few = replace(one, state=State(state.step, *cut), rounded=[grad.reshape(-1)[:_PROBE] for grad in one.rounded])
    made = few.tensor(i, name)
    return all(_same(a, b.reshape(-1)[:_PROBE]) for a, b in zip(made, published[i], strict=True))


def _shortest(value: float, same: Callable[[float], bool]) -> float:
    """The number of fewest decimal digits near a value for which `same` holds, or the value itself."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if same(short):
            return short
    return value
