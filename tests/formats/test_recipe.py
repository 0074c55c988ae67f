"""The recipe: every field decides the digest, and no recipe exists that breaks a rule between fields."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from auditkit.errors import BadArtifact, Unsupported
from auditkit.formats.digest import RECIPE_ROOT, root
from auditkit.formats.recipe import BatchConfig, DivergenceConfig, NumericsConfig, Recipe
from tests.formats.samples import RECIPE

CHANGES = [
    (section.name, field.name)
    for section in dataclasses.fields(RECIPE)
    for field in dataclasses.fields(getattr(RECIPE, section.name))
]


def another(section: str, key: str) -> Any:
    """A valid value that differs from the sample's by as little as possible."""
    special: dict[tuple[str, str], Any] = {
        ("model", "num_heads"): 6,
        ("model", "num_kv_heads"): 1,
        ("model", "head_dim"): 18,
        ("numerics", "body_bits"): 21,
        ("numerics", "head_bits"): 14,
        ("numerics", "fold"): (8,),
        ("divergence", "action"): "skip",
    }
    value = getattr(getattr(RECIPE, section), key)
    if (section, key) in special:
        return special[section, key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value - 1 if (section, key) == ("batch", "micro_batch_sequences") else value + 1
    return value / 2 if value else 0.5


@pytest.mark.parametrize(("section", "key"), [c for c in CHANGES if c[1] not in ("kind", "product", "version")])
def test_every_field_changes_the_digest(section: str, key: str) -> None:
    part = dataclasses.replace(getattr(RECIPE, section), **{key: another(section, key)})
    changed = dataclasses.replace(RECIPE, **{section: part})
    assert changed.digest() != RECIPE.digest()
    assert Recipe.parse(changed.encode()) == changed


def test_the_two_schedules_differ_in_the_digest() -> None:
    steady = dataclasses.replace(RECIPE.schedule, decay_steps=0)
    digests = {
        dataclasses.replace(RECIPE, schedule=dataclasses.replace(steady, kind=kind)).digest()
        for kind in ("wsd", "cosine")
    }
    assert len(digests) == 2


def test_the_digest_is_that_of_the_canonical_text() -> None:
    assert RECIPE.digest() == root(RECIPE_ROOT, RECIPE.encode())


def test_a_recipe_that_a_person_wrote_is_the_same_recipe() -> None:
    text = json.dumps(RECIPE.to_value(), indent=2)
    assert Recipe.parse_relaxed(text.encode("utf-8")) == RECIPE
    with pytest.raises(BadArtifact, match="not canonical JSON"):
        Recipe.parse(text.encode("utf-8"))


@pytest.mark.parametrize(("sequences", "micro", "count"), [(8, 8, 1), (8, 4, 2), (8, 3, 3), (8, 1, 8), (1, 1, 1)])
def test_the_last_micro_batch_may_be_short(sequences: int, micro: int, count: int) -> None:
    assert BatchConfig(sequences, micro).micro_batches == count


def test_too_many_micro_batches_are_refused() -> None:
    with pytest.raises(BadArtifact, match="2097152 micro-batches a step"):
        BatchConfig(1 << 21, 1)


def test_the_usual_numerics_need_no_arguments() -> None:
    assert NumericsConfig() == NumericsConfig(1, "fx", 14, 21)


def test_a_recipe_without_a_fold_does_not_mention_it() -> None:
    assert b"fold" not in RECIPE.encode()
    folded = dataclasses.replace(RECIPE, numerics=NumericsConfig(fold=(8, 4)))
    assert b'"fold":[8,4]' in folded.encode()
    assert Recipe.parse(folded.encode()) == folded


def test_a_recipe_that_stops_does_not_mention_divergence() -> None:
    assert b"divergence" not in RECIPE.encode()
    for rule in (DivergenceConfig("skip"), DivergenceConfig("skip", 2.5), DivergenceConfig("stop", 2.5)):
        changed = dataclasses.replace(RECIPE, divergence=rule)
        assert b'"divergence":{"action":"%s","max_norm":"f32:' % rule.action.encode() in changed.encode()
        assert Recipe.parse(changed.encode()) == changed


def test_plain_binary32_has_24_bits_everywhere() -> None:
    plain = dataclasses.replace(RECIPE, numerics=NumericsConfig(1, "f32", 24, 24))
    assert plain.digest() != RECIPE.digest()
    assert Recipe.parse(plain.encode()) == plain


@pytest.mark.parametrize(
    ("product", "body", "head", "message"),
    [
        ("f32", 14, 24, "body_bits 14 does not fit product f32, use 24"),
        ("f32", 24, 21, "head_bits 21 does not fit product f32, use 24"),
        ("fx", 24, 21, "body_bits 24 does not fit product fx, use 14 or 21"),
        ("fx", 14, 24, "head_bits 24 does not fit product fx, use 14 or 21"),
        ("fx", 24, 24, "body_bits 24 does not fit product fx, use 14 or 21"),
    ],
)
def test_bits_of_another_product_are_refused(product: str, body: int, head: int, message: str) -> None:
    with pytest.raises(BadArtifact, match=message):
        NumericsConfig(1, product, body, head)


def test_a_warm_up_may_fill_the_whole_run() -> None:
    dataclasses.replace(RECIPE.schedule, warmup_steps=10, decay_steps=0)
    with pytest.raises(BadArtifact, match="warmup_steps 11"):
        dataclasses.replace(RECIPE.schedule, warmup_steps=11, decay_steps=0)


@pytest.mark.parametrize("bad", [1e-5, float("nan"), float("inf"), -1.0, 0.0, 2.0])
def test_a_recipe_made_in_code_is_checked_as_well(bad: float) -> None:
    with pytest.raises(BadArtifact, match=r"recipe\.model\.norm_eps"):
        dataclasses.replace(RECIPE.model, norm_eps=bad)


def test_a_newer_numerics_version_outranks_keys_that_nobody_knows_yet() -> None:
    value = RECIPE.to_value()
    numerics, model = value["numerics"], value["model"]
    assert isinstance(numerics, dict) and isinstance(model, dict)
    value["numerics"] = {**numerics, "version": 2, "rounding": "odd"}
    value["model"] = {**model, "experts": 8}
    with pytest.raises(Unsupported, match=r"recipe\.numerics\.version: 2 is newer than 1"):
        Recipe.from_value(value)
