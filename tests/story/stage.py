"""The stage of the story: people with keys and folders of their own, who use nothing but the command line programs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests import forked
from tests.cli.conftest import environment
from tests.conftest import ROOT
from tests.trainer.tiny import RECIPE, VOCAB, write_texts

CONTEXT = "16"
STEPS = 24
NAME = "story"


@dataclass(frozen=True)
class Done:
    """How a program ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def value(self) -> dict[str, Any]:
        """The JSON object on stdout, whose code must be the program's."""
        found: dict[str, Any] = json.loads(self.stdout)
        assert found["code"] == self.code
        return found


@dataclass(frozen=True)
class Person:
    """Somebody with a home of their own: a key, a cache, and a memory of the logs that they have seen."""

    name: str
    home: Path

    @property
    def key(self) -> Path:
        """The private key's file."""
        return self.home / "key.pem"

    @property
    def public(self) -> Path:
        """The public key's file."""
        return self.home / f"{self.name}.pem"

    def auditkit(self, *words: object, **more: str) -> Done:
        """Run `auditkit WORDS`."""
        return self._run(forked.AUDITKIT, words, more)

    def trainer(self, *words: object, patch: str = "") -> Done:
        """Run `python -m trainer WORDS`, or a changed copy of it: `patch` is Python that it runs first."""
        done = self._run(f"{patch}\nimport sys\nfrom trainer.cli import main\nsys.exit(main(sys.argv[1:]))", words, {})
        assert done.code == 0, done.stderr
        return done

    def make_key(self) -> Person:
        """Make a key, and a file of the public key for others."""
        self.home.mkdir(parents=True, exist_ok=True)
        assert self.auditkit("key", "new", self.key).code == 0
        self.public.write_text(self.auditkit("key", "show", self.key).stdout, encoding="ascii")
        return self

    @property
    def public_pem(self) -> str:
        """The PEM block of the public key."""
        text = self.public.read_text(encoding="ascii")
        return text[text.index("-----BEGIN") :]

    @cached_property
    def keyid(self) -> str:
        """The id of the key, as `auditkit key show` prints it."""
        line = self.public.read_text(encoding="ascii").splitlines()[0]
        assert line.startswith("keyid")
        return line.split()[1]

    def _run(self, code: str, words: Sequence[object], more: dict[str, str]) -> Done:
        self.home.mkdir(parents=True, exist_ok=True)
        env = environment(self.home / "cache", {"AUDITKIT_DATA": str(self.home / "data"), **more})
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env["PYTHONPATH"]])
        done = forked.run(code, list(map(str, words)), env=env, cwd=self.home, timeout=300)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


def people(folder: Path, *names: str) -> list[Person]:
    """Some people, each with a new key."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: Person(name, folder / name).make_key(), names))


# A publisher who trains one step with twice the learning rate and records the rate of the recipe.
LIE = """
from dataclasses import replace
from auditkit.replay.backend import Backend
honest = Backend.step
def lying(self, state, tokens, recipe, **more):
    new, result = honest(self, state, tokens, recipe, **more)
    if state.step == {step}:
        rates = recipe.schedule
        other = replace(recipe, schedule=replace(rates, peak_lr=2 * rates.peak_lr, min_lr=2 * rates.min_lr))
        new, told = honest(self, state, tokens, other, **more)
        result = replace(told, lr=result.lr)
    return new, result
Backend.step = lying
"""


def publish(publisher: Person, run: Path, *, tampered: int | None = None) -> None:
    """Train the run and publish it with a signed log; `tampered` is the step that did not happen as recorded."""
    work = publisher.home / f"work-{run.name}-{'honest' if tampered is None else 'tampered'}"
    texts = write_texts(publisher.home / "texts")
    words = ("--vocab-size", VOCAB, "--context-length", CONTEXT, "--seed", 5, "--title", "t", "--license", "CC0-1.0")
    publisher.trainer("prepare", texts, work, *words)
    (work / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    patch = "" if tampered is None else LIE.format(step=tampered)
    # every sixth state, and those around the step that auditors will quarrel about
    kept = ("--state-every", 6, "--keep-states", "13,14")
    publisher.trainer("run", work / "recipe.toml", work, *kept, patch=patch)
    publisher.trainer("publish", work, run, "--name", NAME, "--log-key", publisher.key)
