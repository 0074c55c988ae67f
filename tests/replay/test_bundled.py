"""The runs of `manifests/`: golden ones, so whatever changes, each keeps its names and its steps keep matching."""

from __future__ import annotations

from pathlib import Path

import pytest

import auditkit
from auditkit.replay.data import inspect
from auditkit.replay.run import open_run
from auditkit.store.locate import known
from auditkit.verdict import Verdict
from trainer import recipe_toml

ROOT = Path(__file__).resolve().parents[2]

# run id and log root
GOLDEN = {
    "open-nano": (
        "4ffd345f7e9c6559162180aa0d83d04d50d9cefb954cdfada5df307e013dfe61",
        "3bf1b71631dda2f3aebf6e9809237f96b37850c2cc68e60eecd873eb56d94a55",
    ),
    "sotu-tiny": (
        "c60a7f57f8bb06ead56df45de618eaeffd5b25c38c7feb94eaa1b14004220405",
        "a0950a51380f467ad69100445a98a015e03df92ef3b83e4646a3b221a4459348",
    ),
}
STEPS = [("open-nano", 0), ("open-nano", 40_001), ("open-nano", 48_213), ("sotu-tiny", 0), ("sotu-tiny", 500)]


def test_every_bundled_run_is_golden() -> None:
    assert set(known()) == set(GOLDEN)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_run_keeps_its_names(name: str) -> None:
    with open_run(name) as run:
        assert (run.run_id, run.log_root) == GOLDEN[name]
        assert run.manifest.log.root == run.log_root
        assert run.recipe == recipe_toml.load(ROOT / "trainer" / "recipes" / f"{name}.toml")
        roots = [run.state_before(step) for step in run.published]
        assert roots == [state.root for state in run.manifest.states]


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_its_steps_match(name: str, step: int) -> None:
    """Those of open-nano were computed by a GPU."""
    report = auditkit.verify(name, step=step, device="cpu")
    assert report.verdict is Verdict.MATCH, report.to_json()


@pytest.mark.parametrize(("name", "step"), [("open-nano", 48_213), ("sotu-tiny", 999)])
def test_its_tokens_follow_from_the_corpus(name: str, step: int) -> None:
    with open_run(name) as run:
        assert inspect(run, step).verdict is Verdict.MATCH


def test_both_were_trained_on_the_same_text() -> None:
    """And on the same ids, though one publishes frames and the other windows of them."""
    with open_run("open-nano") as windows, open_run("sotu-tiny") as frames:
        a, b = windows.manifest.data, frames.manifest.data
        assert (a.corpus.digest, a.tokenizer.digest, a.windows) == (b.corpus.digest, b.tokenizer.digest, b.windows)


def test_fifty_thousand_steps_fit_into_twenty_megabytes() -> None:
    folder = ROOT / "manifests" / "open-nano"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 20_000_000
    with open_run("open-nano") as run:
        assert run.size >= 50_000
        assert {0, 48_213, 48_214, run.size} <= set(run.published)
