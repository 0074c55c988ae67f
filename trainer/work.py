"""The work folder: what lies where, and the two small files that only the trainer reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats import canonical
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from trainer.disk import read_bytes, write_atomic

CORPUS, TEXT, TOKENIZER = "corpus.json", "corpus.txt.zst", "tokenizer.json"
SETTINGS_FORMAT = "auditkit/trainer-settings/v1"


@dataclass(frozen=True)
class Settings:
    """How far to train and which states to keep; no bit of any state depends on them."""

    steps: int
    state_every: int
    keep_states: tuple[int, ...]

    def keeps(self, step: int) -> bool:
        """Whether the state at `step` is to be kept: the first, every K-th, the last, and those listed."""
        return step % self.state_every == 0 or step == self.steps or step in self.keep_states

    def encode(self) -> bytes:
        """Canonical JSON."""
        value = {
            "format": SETTINGS_FORMAT,
            "keep_states": list(self.keep_states),
            "state_every": self.state_every,
            "steps": self.steps,
        }
        return canonical.dumps(value, what="settings")

    @classmethod
    def parse(cls, data: bytes) -> Settings:
        """Read what `encode` wrote; raises `BadArtifact`."""
        fields = Fields(canonical.loads(data, what="settings.json", limit=LIMITS.manifest_bytes), "settings.json")
        fields.choice("format", SETTINGS_FORMAT)
        steps = fields.integer("steps", 1, LIMITS.steps, "steps")
        every = fields.integer("state_every", 1, unit="steps")
        keep = Fields.items(fields, "keep_states", 0, LIMITS.states)
        fields.done()
        for step in keep:
            if type(step) is not int or not 0 <= step <= LIMITS.steps:
                raise BadArtifact(f"settings.json.keep_states: not all are steps of 0 to {LIMITS.steps}")
        return cls(steps, every, tuple(keep))


@dataclass(frozen=True)
class Work:
    """Paths of a work folder; those of published files bear the names they have in a run folder."""

    folder: Path

    @property
    def prepared(self) -> Path:
        """Written last by `prepare`: the text and the token stream are complete."""
        return self.folder / "prepared.json"

    @property
    def ids(self) -> Path:
        """All token ids of the corpus in order, raw little-endian U16 or U32."""
        return self.folder / "ids.bin"

    @property
    def ids_chunks(self) -> Path:
        """With declared sources: the digest of each chunk of the ids."""
        return self.folder / "ids.chk"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, as the `tokenizers` library reads it."""
        return self.folder / TOKENIZER

    @property
    def corpus(self) -> Path:
        """Names, sizes and digests of the documents."""
        return self.folder / CORPUS

    @property
    def text(self) -> Path:
        """The documents' bytes back to back, one zstd file."""
        return self.folder / TEXT

    @property
    def settings(self) -> Path:
        """How far to train and which states to keep."""
        return self.folder / "settings.json"

    @property
    def recipe(self) -> Path:
        """Written last by `run` before step 0: there is a run in this folder."""
        return self.folder / "recipe.json"

    @property
    def segments(self) -> Path:
        """The segments after the first, and how far to train then; absent in a run of one segment."""
        return self.folder / "segments.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a step, for people and plots."""
        return self.folder / "metrics.jsonl"

    @property
    def loss_plot(self) -> Path:
        """The loss curve."""
        return self.folder / "loss.svg"

    @property
    def states(self) -> Path:
        """One folder a state."""
        return self.folder / "states"

    def state(self, step: int) -> Path:
        """The folder of the state before step `step`."""
        return self.states / f"{step:08d}"

    def load_recipe(self) -> Recipe:
        """The recipe of the run in this folder; raises `UsageError` if there is none."""
        if not self.recipe.is_file():
            raise UsageError(f"{self.folder}: no run has been started here", hint="python -m trainer run RECIPE WORK")
        return Recipe.parse(read_bytes(self.recipe))

    def load_settings(self) -> Settings:
        """How far to train; raises `BadArtifact` or `Unavailable`."""
        return Settings.parse(read_bytes(self.settings))

    def save_settings(self, settings: Settings) -> None:
        """Replace the settings at once."""
        write_atomic(self.settings, settings.encode())
