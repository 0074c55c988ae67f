"""The recipe as people write it: exact where it converts, strict where it refuses."""

from __future__ import annotations

import struct
import tomllib
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.bits import to_f32
from auditkit.formats.recipe import DivergenceConfig, Recipe
from tests.trainer.tiny import RECIPE, ROOT
from trainer import recipe_toml

BUNDLED = ROOT / "trainer" / "recipes" / "sotu-tiny.toml"


def _load(tmp_path: Path, text: str) -> Recipe:
    (tmp_path / "recipe.toml").write_bytes(text.encode("utf-8"))
    return recipe_toml.load(tmp_path / "recipe.toml")


def test_numbers_become_the_nearest_of_their_width(tmp_path: Path) -> None:
    recipe = _load(tmp_path, RECIPE)
    nearest = struct.unpack("<f", struct.pack("<f", 1e-4))[0]
    assert recipe.loss.z_loss == nearest != 1e-4  # binary32 by the contract
    assert recipe.schedule.peak_lr == 3e-3  # binary64
    assert recipe.to_value()["loss"] == {"z_loss": "f32:38d1b717"}
    assert Recipe.parse(recipe.encode()) == recipe


TABLE = tomllib.loads(RECIPE)
KEYS = [(section, key) for section, keys in TABLE.items() for key in keys]


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_is_required(section: str, key: str) -> None:
    table = {name: dict(keys) for name, keys in TABLE.items()}
    del table[section][key]
    with pytest.raises(BadArtifact, match=rf"^\[{section}\] lacks {key}$"):
        recipe_toml.from_table(table)


def test_a_fold_may_be_declared(tmp_path: Path) -> None:
    assert _load(tmp_path, RECIPE).numerics.fold == ()
    folded = _load(tmp_path, RECIPE.replace("body_bits = 14", "body_bits = 14\nfold = [4, 2]"))
    assert folded.numerics.fold == (4, 2)


def test_a_rule_for_divergence_may_be_declared(tmp_path: Path) -> None:
    plain = _load(tmp_path, RECIPE)
    stop = '[divergence]\naction = "stop"\nmax_norm = 0.0\n'
    assert _load(tmp_path, RECIPE + stop).encode() == plain.encode()
    skip = _load(tmp_path, RECIPE + '[divergence]\naction = "skip"\nmax_norm = 0.1\n')
    assert skip.divergence == DivergenceConfig("skip", to_f32(0.1))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('action = "skip"', r"\[divergence\] lacks max_norm"),
        ("max_norm = 1.0", r"\[divergence\] lacks action"),
        ('action = "clip"\nmax_norm = 1', r'recipe\.divergence\.action: "clip" is not stop or skip'),
        ('action = "skip"\nmax_norm = -1.0', r"recipe\.divergence\.max_norm: -1\.0 is outside"),
        ('action = "skip"\nmax_norm = "1"', r"divergence\.max_norm must be a number"),
        ('action = "skip"\nmax_norm = 1\nmost = 3', r"unknown key in \[divergence\]: most"),
    ],
)
def test_a_wrong_rule_names_what_is_wrong(section: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match=rf"recipe\.toml: .*{words}"):
        _load(tmp_path, f"{RECIPE}\n[divergence]\n{section}\n")


@pytest.mark.parametrize("section", list(TABLE))
def test_every_section_is_required(section: str) -> None:
    with pytest.raises(BadArtifact, match=rf"^section \[{section}\] is missing$"):
        recipe_toml.from_table({name: keys for name, keys in TABLE.items() if name != section})


def test_integers_serve_as_numbers_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    plain = _load(tmp_path, RECIPE)
    windows = "\ufeff" + RECIPE.replace("clip_norm = 1.0", "clip_norm = 1").replace("\n", "\r\n")
    assert _load(tmp_path, windows).digest() == plain.digest()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("\nstd = 0.02", "", r"\[init\] lacks std"),
        ("[init]", "[init]\ncolour = 1", r"unknown key in \[init\]: colour"),
        ("[init]", "[extra]\na = 1\n[init]", "unknown section: extra"),
        ("num_heads = 2\nnum_kv_heads = 1", "num_heads = 3\nnum_kv_heads = 2", "num_heads 3 is no multiple"),
        ("head_dim = 8", "head_dim = 7", "head_dim 7 is odd"),
        ("head_dim = 8", 'head_dim = "8"', r"model\.head_dim must be of type int, not '8'"),
        ("head_dim = 8", "head_dim = true", r"model\.head_dim must be of type int, not True"),
        ("tied_head = true", "tied_head = 1", r"model\.tied_head must be of type bool"),
        ("peak_lr = 3e-3", "peak_lr = nan", r"schedule\.peak_lr must be finite"),
        ("peak_lr = 3e-3", "peak_lr = true", r"schedule\.peak_lr must be a number"),
        ("z_loss = 1e-4", "z_loss = 1e-60", r"loss\.z_loss: 1e-60 is too small for binary32"),
        ("z_loss = 1e-4", "z_loss = 1e60", r"1e\+60 is not a finite binary32 number"),
        ("\nstd = 0.02", "\nstd = 1e300", r"init\.std: 1e\+300 is not a finite binary32 number"),
        ("residual_std = 0.02", "residual_std = 1e-60", r"init\.residual_std: 1e-60 is too small for binary32"),
        ("peak_lr = 3e-3", "peak_lr = 1e39", r"schedule\.peak_lr: 1e\+39 is not a finite binary32 number"),
        ("peak_lr = 3e-3", "peak_lr = 1" + "0" * 400, r"schedule\.peak_lr: the number is too large for binary64"),
        ("body_bits = 14", "body_bits = 15", "body_bits"),
        ("body_bits = 14", "body_bits = 14\nfold = 8", r"numerics\.fold must be a list of integers, not 8"),
        ("body_bits = 14", "body_bits = 14\nfold = []", r"numerics\.fold must be a list of integers, not \[\]"),
        ("body_bits = 14", "body_bits = 14\nfold = [true]", r"numerics\.fold must be a list of integers, not \[True\]"),
        ("body_bits = 14", "body_bits = 14\nfold = [1]", r"recipe\.numerics\.fold\[0\]: 1 is outside 2 to"),
        ('kind = "cosine"', 'kind = "linear"', r"schedule\.kind"),
        ("warmup_steps = 5", "warmup_steps = 25", "exceed total_steps 24"),
        ("micro_batch_sequences = 2", "micro_batch_sequences = 4", "exceeds sequences 3"),
        ("[init]", "[init", "expected"),
        ("seed = 7", "seed = 9007199254740992", r"seed: 9007199254740992 is outside"),
    ],
)
def test_a_wrong_recipe_names_what_is_wrong(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert RECIPE.count(old) == 1
    with pytest.raises(BadArtifact, match=rf"recipe\.toml: .*{words}"):
        _load(tmp_path, RECIPE.replace(old, new))


def test_a_missing_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no such file"):
        recipe_toml.load(tmp_path / "none.toml")


def test_the_bundled_recipe_is_what_it_says() -> None:
    recipe = recipe_toml.load(BUNDLED)
    model = recipe.model
    assert (model.vocab_size, model.context_length, model.hidden_size, model.num_layers) == (512, 128, 64, 2)
    assert (model.num_heads, model.num_kv_heads, model.head_dim, model.ffn_size) == (4, 2, 16, 128)
    assert (recipe.batch.sequences, recipe.batch.micro_batches) == (8, 2)
    assert (recipe.schedule.kind, recipe.schedule.total_steps, recipe.schedule.warmup_steps) == ("cosine", 1000, 50)
