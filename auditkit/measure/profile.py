"""Where a step's time goes: every op and every kernel between two marks of the clock, added up by name and shape.

The wrappers below pass all calls on; what they return is what the step computes with, so no bit can change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from auditkit.kernels.device import Device
from auditkit.measure.clock import Clock
from auditkit.model.ops import Ops


@dataclass(frozen=True)
class Line:
    """Calls of one name and shape: how many, and their seconds altogether."""

    name: str
    count: int
    seconds: float


@dataclass
class Log:
    """Marks around calls, in sections that `cut` ends."""

    clock: Clock
    sections: list[list[tuple[str, Any, Any]]] = field(default_factory=lambda: [[]])

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        """What the call returns."""
        begin = self.clock.mark()
        found = call()
        self.sections[-1].append((name, begin, self.clock.mark()))
        return found

    def cut(self) -> None:
        """Begin a new section."""
        self.sections.append([])

    def lines(self, section: int) -> list[Line]:
        """The calls of a section by name, the longest first."""
        return added((name, self.clock.seconds(begin, end)) for name, begin, end in self.sections[section])


def added(calls: Iterable[tuple[str, float]]) -> list[Line]:
    """Names and seconds of calls, added up by name, the longest first."""
    found: dict[str, list[float]] = {}
    for name, seconds in calls:
        found.setdefault(name, []).append(seconds)
    lines = [Line(name, len(times), sum(times)) for name, times in found.items()]
    return sorted(lines, key=lambda line: -line.seconds)


def timed_ops(ops: Ops, log: Log) -> Ops:
    """The same ops, every call of which is timed."""
    return cast(Ops, _TimedOps(ops, log))


def timed_device(device: Device, log: Log) -> Device:
    """The same device, every launch of which is timed."""
    return cast(Device, _TimedDevice(device, log))


class _TimedOps:
    """Passes everything on; calls are timed under the op's name and the shapes that it is given."""

    def __init__(self, ops: Ops, log: Log) -> None:
        self._ops, self._log = ops, log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        if not callable(found) or name.startswith("_") or not hasattr(found, "__name__"):
            return found

        def call(*args: Any, **options: Any) -> Any:
            made = self._log.timed(op_label(name, args), lambda: found(*args, **options))
            return _TimedDigest(made, self._log) if name == "TensorDigest" else made

        return call


class _TimedDigest:
    """A TensorDigest whose calls are timed."""

    def __init__(self, digest: Any, log: Log) -> None:
        self._digest, self._log = digest, log

    def add(self, piece: Any) -> None:
        self._log.timed("TensorDigest.add", lambda: self._digest.add(piece))

    def digest(self) -> Any:
        return self._log.timed("TensorDigest.digest", self._digest.digest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._digest, name)


class _TimedDevice:
    """Passes everything on; launches are timed under the kernel's name."""

    def __init__(self, device: Device, log: Log) -> None:
        self._device, self._log = device, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(self, op: str, kernel: str, *args: Any, **options: Any) -> None:
        self._log.timed(f"{op}: {kernel}", lambda: self._device.launch(op, kernel, *args, **options))


def op_label(name: str, args: Sequence[Any]) -> str:
    """An op's name and the shapes of its first array, or of both operands of a product."""
    if name == "dot" and len(args) >= 2:
        a, b = (operand_shape(operand) for operand in args[:2])
        if a and b:
            (m, k, bits, batch), n = a, b[0]
            return f"dot fx{bits} {m},{n},{k}" + (f" x {batch}" if batch != 1 else "")
    shape = next((found for arg in args if (found := _shape(arg))), "")
    return f"{name} {shape}".rstrip()


def operand_shape(operand: Any) -> tuple[int, int, int, int] | None:
    """(rows, length, bits, batch) of rows in fixed point on any back end; None where the operand is something else."""
    bits = getattr(operand, "bits", None)
    if bits is None:
        return None
    if hasattr(operand, "rows") and hasattr(operand, "length"):
        return int(operand.rows), int(operand.length), int(bits), int(getattr(operand, "batch", 1))
    array = getattr(operand, "values", getattr(operand, "weight", None))
    if array is None or len(array.shape) < 2:
        return None
    *leading, rows, length = (int(size) for size in array.shape)
    if getattr(operand, "columns", False):
        rows, length = length, rows
    return rows, length, int(bits), math.prod(leading)


def _shape(arg: Any) -> str:
    """Shape of an array; of a list of arrays how many, and their one shape or how many elements."""
    if hasattr(arg, "shape") and hasattr(arg, "dtype"):
        return "x".join(str(size) for size in arg.shape)
    if isinstance(arg, (list, tuple)) and len(shapes := {_shape(one) for one in arg}) == 1:
        (shape,) = shapes
        return f"{len(arg)} x {shape}" if shape else ""
    if isinstance(arg, (list, tuple)) and arg and hasattr(arg[0], "shape"):
        return f"{len(arg)} arrays, {sum(int(array.size) for array in arg):,} elements"
    operand = operand_shape(arg)
    return "x".join(map(str, operand[:2])) if operand else ""
