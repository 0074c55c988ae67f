"""What a measurement found, as values and as JSON: parts of a step, what follows from them, and what stands beside."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from auditkit.formats.recipe import Recipe
from auditkit.measure.floor import Floor
from auditkit.measure.profile import Line
from auditkit.measure.rates import Rates
from auditkit.measure.times import StepTimes
from auditkit.measure.torch_times import TorchTimes
from auditkit.model.params import parameter_count

FORMAT = "auditkit/bench/v1"
STATE_BYTES = 12  # a parameter and its two moments
_DIGITS = 6


@dataclass(frozen=True)
class Report:
    """All that `auditkit bench` says. `missing` tells why torch's times, or some of them, are not there."""

    model: str
    recipe: Recipe
    device: str
    plan: str
    threads: int
    memory: int
    rates: Rates
    times: StepTimes
    floor: Floor
    torch: tuple[TorchTimes, ...]
    missing: tuple[str, ...]
    lines: tuple[Line, ...] = ()  # of a micro-batch by op, where they were asked for

    @property
    def micro_batches(self) -> int:
        """Of a step."""
        return self.recipe.batch.micro_batches

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.recipe.batch.sequences * self.recipe.model.context_length

    @property
    def step(self) -> float:
        """Seconds of a step, computed from its measured parts."""
        return self.times.step(self.micro_batches)

    @property
    def unpack(self) -> float:
        """Seconds for reading, decompressing and hashing the state that an audit begins from, computed."""
        return STATE_BYTES * parameter_count(self.recipe.model) / self.rates.unpack

    @property
    def audit(self) -> float:
        """Seconds of an audit of one step whose start state is here: without downloads and the end state's files."""
        return self.step + self.unpack

    @property
    def least(self) -> float:
        """Seconds that a step takes at least here, computed."""
        return self.floor.step(self.micro_batches)

    @property
    def joules(self) -> float | None:
        """Of the micro-batches of a step, computed; None where the device does not say."""
        return None if self.times.joules is None else self.times.joules * self.micro_batches

    def ratio(self, other: TorchTimes) -> float:
        """How many times as long as torch's step ours takes."""
        return self.step / other.step(self.micro_batches)

    def to_dict(self) -> dict[str, object]:
        """The report as JSON values; times in seconds, rates a second, sizes in bytes."""
        return {
            "format": FORMAT,
            "verdict": "MATCH",
            "code": 0,
            "model": self.model,
            "parameters": parameter_count(self.recipe.model),
            "recipe": self.recipe.digest(),
            "device": self.device,
            "threads": self.threads,
            "plan": self.plan,
            "memory": self.memory,
            "peak_memory": self.times.peak_bytes,
            "sequences": self.recipe.batch.sequences,
            "micro_batch_sequences": self.recipe.batch.micro_batch_sequences,
            "micro_batches": self.micro_batches,
            "tokens": self.tokens,
            "rates": _rounded(asdict(self.rates)),
            "measured": _rounded({k: v for k, v in asdict(self.times).items() if k != "peak_bytes"}),
            "computed": _rounded(
                {"step": self.step, "unpack": self.unpack, "audit": self.audit, "joules": self.joules}
            ),
            "floor": _rounded({**asdict(self.floor), "micro_batch": self.floor.micro_batch, "step": self.least}),
            "torch": [self._beside(found) for found in self.torch],
            "missing": list(self.missing),
            "ops": [_rounded(asdict(line)) for line in self.lines],
        }

    def _beside(self, found: TorchTimes) -> dict[str, object]:
        step = found.step(self.micro_batches)
        return _rounded({**asdict(found), "step": step, "ours_to_theirs": self.ratio(found)})


def _rounded(values: dict[str, object]) -> dict[str, object]:
    """Floats with so many digits as a measurement deserves."""
    return {k: float(f"{v:.{_DIGITS}g}") if isinstance(v, float) else v for k, v in values.items()}
