"""What a plan for little memory was predicted to take, and what it took: by part, with waits for copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from auditkit.formats.recipe import Recipe
from auditkit.measure.machine import measured_profile
from auditkit.measure.profile import Line
from auditkit.measure.subject import Subject
from auditkit.measure.times import StepTimes
from auditkit.model.plan import Plan
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.predict import Prediction, Profile, predict, profile_of
from auditkit.replay.sizes import sizes_of

Say = Callable[[str], None]


def profile_here(recipe: Recipe, backend: Backend, say: Say) -> Profile:
    """The profile of this machine: a card's is measured."""
    if not isinstance(backend, CudaBackend) or not hasattr(backend.ops.device, "transfers"):
        return profile_of(isinstance(backend, CudaBackend))
    found = measured_profile(recipe, backend)
    assert found.to_host is not None and found.to_device is not None
    say(f"profile     products {2 * found.products / 1e12:,.0f} TFLOP/s, the head's {2 * found.head / 1e12:,.0f}")
    say(f"            attention {2 * found.attention / 1e12:,.0f} of all pairs, backward {found.backward:.2f} times it")
    say(f"            copies at once {found.to_device / 1e9:,.1f} GB/s to the card, {found.to_host / 1e9:,.1f} from it")
    say(f"            page-locked memory {found.lock / 1e9:,.2f} GB/s")
    return found


def say_prediction(subject: Subject, profile: Profile, say: Say) -> float:
    """Tell what the plan is predicted to take; how many times as long as the plain way."""
    sizes = sizes_of(subject.recipe, subject.cuda)
    found = predict(sizes, subject.layout.plan, profile)
    ratio = (found.seconds - found.once) / predict(sizes, Plan(), profile).seconds
    say(f"predicted   micro-batch {1e3 * (found.seconds - found.once):,.2f} ms, {ratio:.3f} times the plain way's")
    say(f"            {found.once * subject.recipe.batch.micro_batches:,.1f} s once a process, to lock memory")
    for line in _lines(found):
        say(f"  {line}")
    for name, size in subject.layout.need.parts:
        if size:
            say(f"  {size / 2**30:10.2f} GiB {name}")
    return ratio


def _lines(found: Prediction) -> list[str]:
    return [
        f"{1e3 * part.seconds(found.overlaps):10.2f} ms {part.name}: computing {1e3 * part.compute:.2f}, to the card"
        f" {1e3 * part.to_device:.2f}, to main memory {1e3 * part.to_host:.2f}, files {1e3 * part.disk:.2f}"
        for part in found.parts
    ]


def say_parts(times: StepTimes, say: Say) -> None:
    """Tell where the time of a micro-batch went under a plan that works in pieces."""
    for title, lines in (("parts", times.parts), ("waits for copies, within these", times.waits)):
        if lines:
            say(f"{title}: {1e3 * _total(lines) / times.counted:.2f} ms a micro-batch")
        for line in lines:
            say(f"  {1e3 * line.seconds / times.counted:10.3f} ms {line.count:5} x {line.name}")


def _total(lines: Sequence[Line]) -> float:
    return sum(line.seconds for line in lines)
