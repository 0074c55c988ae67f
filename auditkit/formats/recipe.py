"""The recipe: everything besides the data that decides the bits of a run. Floats are written as bit patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.digest import RECIPE_ROOT, Digest, root
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.schema import Choice, Flag, Int, Ints, Real, Section, Version

FORMAT = "auditkit/recipe/v1"

_NOT_NEGATIVE_32 = Real(32)
_NOT_NEGATIVE_64 = Real(64)
_POSITIVE_64 = Real(64, low_open=True)
_BETA = Real(64, high=1.0, high_open=True)
_EPS = Real(32, high=1.0, low_open=True)
_STEPS = Int(0, LIMITS.steps, "steps")


@dataclass(frozen=True, slots=True)
class ModelConfig(Section):
    """A decoder-only transformer of the Llama family; sizes in elements, `sliding_window` in tokens (0: none)."""

    section = "recipe.model"

    vocab_size: Annotated[int, Int(2, 1 << 20, "tokens")]
    hidden_size: Annotated[int, Int(1, 1 << 20)]
    num_layers: Annotated[int, Int(1, 1 << 12)]
    num_heads: Annotated[int, Int(1, 1 << 12)]
    num_kv_heads: Annotated[int, Int(1, 1 << 12)]
    head_dim: Annotated[int, Int(2, 1 << 12)]
    ffn_size: Annotated[int, Int(1, 1 << 22)]
    context_length: Annotated[int, Int(1, 1 << 20, "tokens")]
    rope_theta: Annotated[float, Real(64, low=1.0, high=1e12)]
    norm_eps: Annotated[float, _EPS]
    tied_head: Annotated[bool, Flag()]
    qk_norm: Annotated[bool, Flag()]
    sliding_window: Annotated[int, Int(0, 1 << 20, "tokens")]

    def check(self) -> None:
        """Rules between fields: grouped heads divide, RoPE pairs dimensions, a window fits the context."""
        if self.num_heads % self.num_kv_heads:
            raise BadArtifact(
                f"recipe.model: num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise BadArtifact(f"recipe.model: head_dim {self.head_dim} is odd, but rope rotates pairs")
        if self.sliding_window > self.context_length:
            raise BadArtifact(
                f"recipe.model: sliding_window {self.sliding_window} exceeds context_length {self.context_length}"
            )


@dataclass(frozen=True, slots=True)
class LossConfig(Section):
    """Cross-entropy over all targets plus `z_loss` times the mean square of the log-partition (0.0: off)."""

    section = "recipe.loss"

    z_loss: Annotated[float, _NOT_NEGATIVE_32]


@dataclass(frozen=True, slots=True)
class OptimizerConfig(Section):
    """AdamW with decoupled weight decay; `clip_norm` bounds the global gradient norm (0.0: off)."""

    section = "recipe.optimizer"

    kind: Annotated[str, Choice(("adamw",))]
    beta1: Annotated[float, _BETA]
    beta2: Annotated[float, _BETA]
    eps: Annotated[float, _EPS]
    weight_decay: Annotated[float, _NOT_NEGATIVE_64]
    clip_norm: Annotated[float, _NOT_NEGATIVE_32]


@dataclass(frozen=True, slots=True)
class ScheduleConfig(Section):
    """Learning rate by step: linear warm-up, then cosine, or constant with a linear decay at the end (wsd)."""

    section = "recipe.schedule"

    kind: Annotated[str, Choice(("cosine", "wsd"))]
    peak_lr: Annotated[float, _NOT_NEGATIVE_64]
    min_lr: Annotated[float, _NOT_NEGATIVE_64]
    warmup_steps: Annotated[int, _STEPS]
    decay_steps: Annotated[int, _STEPS]
    total_steps: Annotated[int, Int(1, LIMITS.steps, "steps")]

    def check(self) -> None:
        """Rules between fields: min_lr below peak_lr, phases fit the total, decay_steps for wsd only."""
        if self.min_lr > self.peak_lr:
            raise BadArtifact(f"recipe.schedule: min_lr {self.min_lr!r} exceeds peak_lr {self.peak_lr!r}")
        if self.kind == "cosine" and self.decay_steps:
            raise BadArtifact("recipe.schedule: decay_steps must be 0 for cosine, which decays to the end")
        if self.warmup_steps + self.decay_steps > self.total_steps:
            raise BadArtifact(
                f"recipe.schedule: warmup_steps {self.warmup_steps} + decay_steps {self.decay_steps}"
                f" exceed total_steps {self.total_steps}"
            )


@dataclass(frozen=True, slots=True)
class BatchConfig(Section):
    """Sequences a step and a micro-batch; the last micro-batch of a step may be short."""

    section = "recipe.batch"

    sequences: Annotated[int, Int(1, 1 << 24, "sequences")]
    micro_batch_sequences: Annotated[int, Int(1, 1 << 24, "sequences")]

    def check(self) -> None:
        """Rules between fields: a micro-batch is no larger than the batch, and they are not too many."""
        if self.micro_batch_sequences > self.sequences:
            raise BadArtifact(
                f"recipe.batch: micro_batch_sequences {self.micro_batch_sequences} exceeds sequences {self.sequences}"
            )
        if self.micro_batches > LIMITS.micro_batches_per_step:
            raise BadArtifact(f"recipe.batch: {self.micro_batches} micro-batches a step, at most 2^20 are allowed")

    @property
    def micro_batches(self) -> int:
        """Micro-batches a step: sequences / micro_batch_sequences, rounded up."""
        return -(-self.sequences // self.micro_batch_sequences)


@dataclass(frozen=True, slots=True)
class NumericsConfig(Section):
    """Version of numerics/SPEC.md, the product, and its bits in the body and in the head: fx14, fx21, or f32 (24).

    fold: the groups in which micro-batch gradients are added in binary32 (SPEC.md section 17); () for their exact sum.
    """

    section = "recipe.numerics"

    version: Annotated[int, Version(1)] = 1
    product: Annotated[str, Choice(("fx", "f32"))] = "fx"
    body_bits: Annotated[int, Choice((14, 21, 24))] = 14
    head_bits: Annotated[int, Choice((14, 21, 24))] = 21
    fold: Annotated[tuple[int, ...], Ints(2, 1 << 20, 8)] = ()

    def check(self) -> None:
        """Rules between fields: 24 bits, the significand of binary32, with product f32 and with no other."""
        for key, bits in (("body_bits", self.body_bits), ("head_bits", self.head_bits)):
            if (bits == 24) != (self.product == "f32"):
                allowed = "24" if self.product == "f32" else "14 or 21"
                raise BadArtifact(f"recipe.numerics: {key} {bits} does not fit product {self.product}, use {allowed}")


@dataclass(frozen=True, slots=True)
class InitConfig(Section):
    """Seed of the initialisation and the standard deviations of ordinary and of residual-output matrices."""

    section = "recipe.init"

    seed: Annotated[int, Int(0)]
    std: Annotated[float, _POSITIVE_64]
    residual_std: Annotated[float, _POSITIVE_64]


@dataclass(frozen=True, slots=True)
class DivergenceConfig(Section):
    """What becomes of a step without a finite result, or whose gradient norm exceeds `max_norm` (0.0: no bound).

    "stop": it has no result, and no run goes on behind it; "skip": the next state has the same tensors (SPEC.md
    section 18). The default, to stop without a bound, is written by leaving the section out.
    """

    section = "recipe.divergence"

    action: Annotated[str, Choice(("stop", "skip"))] = "stop"
    max_norm: Annotated[float, _NOT_NEGATIVE_32] = 0.0

    @property
    def skips(self) -> bool:
        """Whether such a step is skipped."""
        return self.action == "skip"


@dataclass(frozen=True, slots=True)
class Recipe:
    """All sections; every value was checked when its section was made."""

    model: ModelConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    batch: BatchConfig
    numerics: NumericsConfig
    init: InitConfig
    divergence: DivergenceConfig = DivergenceConfig()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The recipe of canonical JSON; BadArtifact naming the field."""
        return cls.from_value(canonical.loads(data, what="recipe", limit=LIMITS.recipe_bytes))

    @classmethod
    def parse_relaxed(cls, data: bytes) -> Self:
        """As `parse` for a file that a person wrote: spacing and key order are free, the fields are not."""
        return cls.from_value(canonical.loads_relaxed(data, what="recipe", limit=LIMITS.recipe_bytes))

    @classmethod
    def from_value(cls, value: canonical.Value, what: str = "recipe") -> Self:
        """The recipe of a parsed JSON object; BadArtifact naming the field, Unsupported for a newer version."""
        fields = Fields(value, what)
        fields.format(FORMAT)
        numerics = NumericsConfig.from_fields(fields.fields("numerics"))  # first: a newer version may know more keys
        recipe = cls(
            model=ModelConfig.from_fields(fields.fields("model")),
            loss=LossConfig.from_fields(fields.fields("loss")),
            optimizer=OptimizerConfig.from_fields(fields.fields("optimizer")),
            schedule=ScheduleConfig.from_fields(fields.fields("schedule")),
            batch=BatchConfig.from_fields(fields.fields("batch")),
            numerics=numerics,
            init=InitConfig.from_fields(fields.fields("init")),
            divergence=_divergence(fields),
        )
        fields.done()
        return recipe

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        return {
            "format": FORMAT,
            "model": self.model.to_value(),
            "loss": self.loss.to_value(),
            "optimizer": self.optimizer.to_value(),
            "schedule": self.schedule.to_value(),
            "batch": self.batch.to_value(),
            "numerics": self.numerics.to_value(),
            "init": self.init.to_value(),
            **({} if self.divergence == DivergenceConfig() else {"divergence": self.divergence.to_value()}),
        }

    def encode(self) -> bytes:
        """Canonical JSON."""
        return canonical.dumps(self.to_value(), what="recipe")

    def digest(self) -> Digest:
        """BLAKE3 of the canonical JSON under RECIPE_ROOT; state documents name the recipe by it."""
        return root(RECIPE_ROOT, self.encode())


def _divergence(fields: Fields) -> DivergenceConfig:
    """The optional section. A second way to write the default would give one recipe two digests."""
    if not fields.has("divergence"):
        return DivergenceConfig()
    found = DivergenceConfig.from_fields(fields.fields("divergence"))
    if found == DivergenceConfig():
        raise BadArtifact(f"{fields.name('divergence')}: to stop without a bound is said by leaving the section out")
    return found
