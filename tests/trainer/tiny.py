"""A run that takes a tenth of a second: 24 steps, odd batches, several epochs, states in no even rhythm."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests import forked
from trainer import cli

ROOT = Path(__file__).resolve().parents[2]
STEPS = 24
VOCAB, CONTEXT = 300, 16
KEPT = [0, 6, 9, 12, 18, 24]

# Many equal pair counts, several scripts, all kinds of white space: where an unordered map would show.
TEXTS = [
    "the cat sat on the mat; " * 9,
    "die Katze saß\tauf\r\nder Matte " * 7,
    "кот 猫 😀\u0000\u0002 " * 8,
    "",
    "ab ba ab ba",
]

RECIPE = """
[model]
vocab_size = 300
context_length = 16
hidden_size = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
head_dim = 8
ffn_size = 16
rope_theta = 10000.0
norm_eps = 1e-5
tied_head = true
qk_norm = true
sliding_window = 0

[loss]
z_loss = 1e-4

[optimizer]
kind = "adamw"
beta1 = 0.9
beta2 = 0.95
eps = 1e-8
weight_decay = 0.1
clip_norm = 1.0

[schedule]
kind = "cosine"
peak_lr = 3e-3
min_lr = 3e-4
warmup_steps = 5
decay_steps = 0
total_steps = 24

[batch]
sequences = 3
micro_batch_sequences = 2

[numerics]
version = 1
product = "fx"
body_bits = 14
head_bits = 21

[init]
seed = 7
std = 0.02
residual_std = 0.02
"""


def write_texts(folder: Path) -> Path:
    """The texts as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_bytes(text.encode("utf-8"))
    return folder


def prepare(folder: Path) -> Path:
    """Prepare the texts, with a recipe beside them; returns the work folder."""
    texts, work = write_texts(folder / "texts"), folder / "work"
    sizes = ["--vocab-size", str(VOCAB), "--context-length", str(CONTEXT)]
    words = ["--title", "tiny texts", "--license", "CC0-1.0"]
    assert cli.main(["prepare", str(texts), str(work), *sizes, "--seed", "5", *words]) == 0
    (work / "recipe.toml").write_text(RECIPE, encoding="utf-8", newline="\n")
    return work


def run_arguments(work: Path, *more: str) -> list[str]:
    """The command that trains the tiny run."""
    return ["run", str(work / "recipe.toml"), str(work), "--state-every", "6", "--keep-states", "9", *more]


def run(work: Path, *more: str) -> int:
    """Train in this process."""
    return cli.main(run_arguments(work, *more))


def resume(work: Path, *more: str) -> int:
    """Go on in this process."""
    return cli.main(["resume", str(work), *more])


def start_child(arguments: list[str], *, before: str = "") -> forked.Process:
    """Start a trainer process; `before` is Python to run in it first."""
    code = f"import sys\n{before}\nfrom trainer.cli import main\nsys.exit(main(sys.argv[1:]))"
    return forked.start(code, arguments, cwd=ROOT)


def bits(work: Path) -> dict[str, bytes]:
    """All that the run consists of: every file but those for people, whose lines hold times."""
    names = ["recipe.json", "settings.json", "records.bin", "leaves.bin", "stream.bin", "stream.idx", "checks.bin"]
    files = {name: (work / name).read_bytes() for name in names}
    for path in sorted((work / "states").rglob("*")):
        if path.is_file():
            files[path.relative_to(work).as_posix()] = path.read_bytes()
    return files


def metrics(work: Path) -> list[dict[str, Any]]:
    """The metrics without times."""
    rows = [json.loads(line) for line in (work / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: row[key] for key in ("step", "loss", "norm", "lr")} for row in rows]


def assert_same_run(work: Path, other: Path) -> None:
    """Both folders hold the same run, bit for bit, and no leftovers."""
    found, expected = bits(work), bits(other)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert metrics(work) == metrics(other)
    assert [path for path in work.rglob("*") if path.name.startswith(".tmp-")] == []


SECONDS = 300.0  # after which a process that has not ended fails its test

KILLED = (-getattr(signal, "SIGKILL", 9), 137)
KILL_SELF = "os.kill(os.getpid(), signal.SIGKILL)" if hasattr(signal, "SIGKILL") else "os._exit(137)"

# Writes half of the bytes of the n-th append and dies.
DIE_IN_APPEND = """
import os, signal
from trainer import log
class Torn:
    count = 0
    def __init__(self, file): self.file = file
    def __getattr__(self, name): return getattr(self.file, name)
    def write(self, data):
        Torn.count += 1
        if Torn.count == {append}:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            {kill}
        return self.file.write(data)
before = log.RunLog.__init__
def wrap(self, folder, files, offset, **more):
    before(self, folder, {{name: Torn(file) for name, file in files.items()}}, offset, **more)
log.RunLog.__init__ = wrap
"""
