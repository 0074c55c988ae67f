"""The trainer's own small files: read back as written, and refused with a message when somebody has changed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from tests.fuzz import seeds
from trainer import recipe_toml
from trainer.data import given
from trainer.metrics import read_metrics
from trainer.work import Settings


def test_settings_come_back() -> None:
    settings = Settings(9, 3, (1, 2))
    assert Settings.parse(settings.encode()) == settings


@pytest.mark.parametrize("step", ["5", {}, [1], True, -1, 10_000_001])
def test_a_kept_state_that_is_no_step_is_refused(step: object) -> None:
    value = canonical.loads(Settings(9, 3, ()).encode(), what="settings", limit=1000)
    with pytest.raises(BadArtifact, match="keep_states"):
        Settings.parse(canonical.dumps({**value, "keep_states": [step]}))


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "a = \ud800"])
def test_a_recipe_that_toml_cannot_hold_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadArtifact, match=r"recipe\.toml"):
        recipe_toml.load(path)


def test_figures_nested_too_deep_are_left_out() -> None:
    line = b'{"step":0,"loss":1,"lr":1}\n'
    assert [found for found, _ in read_metrics(b"[" * 100_000 + b"\n" + line)] == [line]


def test_a_tokenizer_without_any_token_is_refused() -> None:
    value = canonical.loads_relaxed(seeds.tokenizer().replace(b"null", b"false"), what="tokenizer", limit=1 << 20)
    for key in ("normalizer", "post_processor", "truncation", "padding"):
        del value[key]
    value["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    value["added_tokens"] = []
    with pytest.raises(BadArtifact, match="no special token"):
        given.check(canonical.dumps(value), "<|endoftext|>")
