"""Tampering, through the command line: each kind of lie, its verdict, and what the message names.

A naive lie changes bytes that some digest names. A consistent one is published afresh: every digest, root and manifest
is computed over the lie, so that only the training itself can tell (tests/replay/make_run.py).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from auditkit.formats.record import RecordFile, RecordRow, expand, log_root
from auditkit.formats.run import GROWING, RunManifest
from tests.cli.conftest import Cli, Done
from tests.replay import make_run
from tests.replay.make_run import Parts, change_leaf, flip, flip_state, publish, rows_of

SHARD = "states/00000004/shard-00000.safetensors.zst"
WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    """A copy of the honest run that a test may damage."""
    return Path(shutil.copytree(honest, tmp_path / "tampered"))


def flip_byte(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def edit_manifest(folder: Path, change: Callable[[RunManifest], RunManifest]) -> None:
    """Change the manifest and let its artifacts be the files as they are now."""
    path = folder / "run.json"
    manifest = replace(RunManifest.parse(path.read_bytes()), artifacts=make_run.artifacts(folder))
    path.write_bytes(change(manifest).encode())


def expect(done: Done, verdict: str, code: int, *words: str) -> None:
    """The verdict, its exit code, and words that the message must have."""
    said = done.stdout + done.stderr
    assert done.code == code, said
    assert f"\n{verdict}" in "\n" + said
    assert "Traceback" not in said
    for word in words:
        assert word in said, f"{word!r} is not in:\n{said}"


def test_the_honest_run_matches(main: Cli, honest: Path) -> None:
    expect(main("verify", "--run", honest, "--steps", "0:8"), "MATCH", 0, "8 steps")


# One bit of a start tensor


def test_naive_bit_of_a_start_tensor(main: Cli, copy: Path) -> None:
    flip_byte(copy / "states/00000004/shard-00000.safetensors.zst", 5000)
    expect(
        main("verify", "--run", copy, "--step", 4),
        "BAD_ARTIFACT",
        4,
        "states/00000004/shard-00000.safetensors.zst",
        "4 FAILED  start state root",
    )


def test_consistent_bit_of_a_start_tensor_is_refused_by_the_records(main: Cli, parts: Parts, tmp_path: Path) -> None:
    """All digests of the state are right, but the record before ends in another root."""
    lie = parts.copy()
    lie.rows = rows_of(parts)
    lie.states[4] = flip_state(parts.states[4], "params", WEIGHT, 17)
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 4)
    expect(done, "BAD_ARTIFACT", 4, "published state 4 has root", "record 3 ends in", "2 FAILED  record chain")


def test_bit_of_a_start_tensor_with_every_record_agreeing(main: Cli, parts: Parts, tmp_path: Path) -> None:
    """The records say what the lie says; the step that ends in it and the one that begins with it do not match."""
    lie = parts.copy()
    lie.states[4] = flip_state(parts.states[4], "params", WEIGHT, 17)
    folder = publish(lie, tmp_path / "lie")
    before = main("verify", "--run", folder, "--step", 3)
    place = f"param {WEIGHT} [1, 1]"
    expect(before, "MISMATCH", 3, "7 FAILED  end state root", "first differing tensor: " + place, "1 ulp apart")
    expect(main("verify", "--run", folder, "--step", 4), "MISMATCH", 3, "first differing field of the record")


# One bit of an end tensor


def test_naive_bit_of_an_end_tensor(main: Cli, copy: Path) -> None:
    flip_byte(copy / "states/00000005/shard-00000.safetensors.zst", 5000)
    done = main("verify", "--run", copy, "--step", 4)
    expect(done, "BAD_ARTIFACT", 4, "states/00000005/shard-00000.safetensors.zst", "7 FAILED  end state root")
    assert "8 ok" in done.stdout


def test_consistent_bit_of_an_end_tensor(main: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "adam_v", WEIGHT, 30, bit=9)
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 4)
    words = ("7 FAILED  end state root", f"adam_v {WEIGHT} [1, 14]", "512 ulp apart", "1 of 384 elements differ")
    expect(done, "MISMATCH", 3, *words, "first differing field of the record: state_after")
    assert "twice with the same result" in done.stdout


# One bit of a token


def test_naive_bit_of_a_token(main: Cli, copy: Path) -> None:
    flip_byte(copy / "stream.bin", 60)
    expect(main("verify", "--run", copy, "--step", 0), "BAD_ARTIFACT", 4, "stream.bin, frame of step 0", "5 FAILED")


def test_bit_of_a_token_with_index_and_digests_recomputed(main: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.rows = rows_of(parts)
    lie.batches[4] = flip(parts.batches[4], 20)
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 4)
    expect(
        done, "BAD_ARTIFACT", 4, "the tokens of step 4 have batch digest", "its record says", "5 FAILED  batch digest"
    )


def test_bit_of_a_token_with_the_record_agreeing(main: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.batches[4] = flip(parts.batches[4], 20)
    folder = publish(lie, tmp_path / "lie")
    expect(main("verify", "--run", folder, "--step", 4), "MISMATCH", 3, "micro_batches[0].")
    done = main("data", "--run", folder, "--step", 4)
    expect(done, "MISMATCH", 3, "sequence 1, token 3", "1 of 51 tokens differ")


# The recipe


def with_peak(parts: Parts, factor: float) -> Parts:
    """The recipe with another learning rate; nothing else changes."""
    schedule = replace(parts.recipe.schedule, peak_lr=parts.recipe.schedule.peak_lr * factor)
    lie = parts.copy()
    lie.recipe = replace(parts.recipe, schedule=schedule)
    return lie


def test_naive_bit_of_a_learning_rate_in_the_recipe(main: Cli, parts: Parts, copy: Path) -> None:
    """The run id follows from the recipe and every record carries it: the records no longer give the log root."""
    lie = with_peak(parts, float(np.nextafter(1, 2)))
    edit_manifest(copy, lambda manifest: replace(manifest, recipe=lie.recipe))
    done = main("verify", "--run", copy, "--step", 4)
    expect(done, "BAD_ARTIFACT", 4, "3 FAILED  record against the log root", "recipe or data of the manifest")


def test_altered_recipe_with_a_recomputed_log(main: Cli, parts: Parts, tmp_path: Path) -> None:
    """The log fits the altered recipe, but the states still name the recipe that they were trained with."""
    folder = publish(parts, tmp_path / "lie")
    recipe = with_peak(parts, 2.0).recipe
    edit_manifest(folder, lambda manifest: relog(replace(manifest, recipe=recipe), folder))
    done = main("verify", "--run", folder, "--step", 4)
    expect(done, "BAD_ARTIFACT", 4, "belongs to recipe", "the manifest's recipe is", "hint: the recipe in run.json")


def relog(manifest: RunManifest, folder: Path) -> RunManifest:
    """The manifest with the log root that its own recipe and the published rows give."""
    rows = RecordFile.parse((folder / "records.bin").read_bytes()).rows
    chain = expand(
        rows,
        run_id=manifest.run_id(),
        numerics=manifest.recipe.numerics.version,
        micro_batches=manifest.recipe.batch.micro_batches,
        state0=manifest.states[0].root,
    )
    return replace(manifest, log=replace(manifest.log, root=log_root(chain)))


def test_altered_recipe_with_every_digest_recomputed(main: Cli, parts: Parts, tmp_path: Path) -> None:
    done = main("verify", "--run", publish(with_peak(parts, 2.0), tmp_path / "lie"), "--step", 4)
    words = ("lr:", "first differing field of the record: lr", "the gradient is right and the learning rate is not")
    expect(done, "MISMATCH", 3, *words)


# One bit of a loss in a record


def test_naive_bit_of_a_loss(main: Cli, copy: Path) -> None:
    flip_byte(copy / "records.bin", 16 + 140 * 4 + 128)
    expect(main("verify", "--run", copy, "--step", 4), "BAD_ARTIFACT", 4, "records.bin", "2 FAILED  record chain")


def test_bit_of_a_loss_with_the_file_digest_recomputed(main: Cli, copy: Path) -> None:
    flip_byte(copy / "records.bin", 16 + 140 * 4 + 128)
    edit_manifest(copy, lambda manifest: manifest)
    expect(main("verify", "--run", copy, "--step", 4), "BAD_ARTIFACT", 4, "3 FAILED  record against the log root")


def test_bit_of_a_loss_with_the_log_recomputed(main: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.rows = rows_of(parts)
    lie.rows[4] = replace(lie.rows[4], loss=lie.rows[4].loss ^ 1)
    folder = publish(lie, tmp_path / "lie")
    done = main("verify", "--run", folder, "--step", 4)
    expect(done, "MISMATCH", 3, "first differing field of the record: loss", "1 ulp away", "7 ok")
    # the state was right, so the steps after it can still be verified
    after = main("verify", "--run", folder, "--steps", "4:8")
    expect(after, "MISMATCH", 3, "step 7  MATCH", "3 of 4 steps matched")


def test_leaf_with_every_digest_recomputed(main: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.results[4] = change_leaf(parts.results[4], 1, loss_sum=parts.results[4].leaves[1].loss_sum + 1)
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 4)
    expect(done, "MISMATCH", 3, "first differing field of the record: micro_batches[1].loss_sum")


def test_naive_leaf(main: Cli, copy: Path) -> None:
    flip_byte(copy / "leaves.bin", 16 + 40 * 8)
    done = main("verify", "--run", copy, "--step", 4)
    expect(done, "BAD_ARTIFACT", 4, "leaves.bin: the leaves of step 4 have root", "8 FAILED", "7 ok")


# Records swapped


def swap(rows: list[RecordRow]) -> list[RecordRow]:
    return [*rows[:1], rows[2], rows[1], *rows[3:]]


def test_naive_swap_of_records(main: Cli, copy: Path) -> None:
    path = copy / "records.bin"
    data = path.read_bytes()
    a, b, c = 16 + 140, 16 + 280, 16 + 420
    path.write_bytes(data[:a] + data[b:c] + data[a:b] + data[c:])
    expect(main("verify", "--run", copy, "--step", 1), "BAD_ARTIFACT", 4, "records.bin")
    edit_manifest(copy, lambda manifest: manifest)
    expect(main("verify", "--run", copy, "--step", 1), "BAD_ARTIFACT", 4, "3 FAILED", "records were changed or swapped")


def test_consistent_swap_of_records(main: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.rows = swap(rows_of(parts))
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 2)
    expect(done, "BAD_ARTIFACT", 4, "step 1", "batch digest")
    lie.batches = [*parts.batches[:1], parts.batches[2], parts.batches[1], *parts.batches[3:]]
    lie.results = [*parts.results[:1], parts.results[2], parts.results[1], *parts.results[3:]]
    done = main("verify", "--run", publish(lie, tmp_path / "lie2"), "--step", 2)
    expect(done, "MISMATCH", 3, "step 1, on the way", "not reached: step 1 on the way")


# A state of another step


def test_naive_state_of_another_step(main: Cli, copy: Path) -> None:
    shutil.rmtree(copy / "states/00000004")
    shutil.copytree(copy / "states/00000005", copy / "states/00000004")
    expect(main("verify", "--run", copy, "--step", 4), "BAD_ARTIFACT", 4, "states/00000004/")


def test_state_of_another_step_with_digests_recomputed(main: Cli, copy: Path) -> None:
    shutil.rmtree(copy / "states/00000004")
    shutil.copytree(copy / "states/00000005", copy / "states/00000004")
    edit_manifest(copy, lambda manifest: manifest)
    done = main("verify", "--run", copy, "--step", 4)
    expect(done, "BAD_ARTIFACT", 4, "states/00000004/state.json has root", "the manifest says")


def test_state_of_another_step_named_by_the_manifest(main: Cli, copy: Path) -> None:
    shutil.rmtree(copy / "states/00000004")
    shutil.copytree(copy / "states/00000005", copy / "states/00000004")

    def rename(manifest: RunManifest) -> RunManifest:
        root = next(state.root for state in manifest.states if state.step == 5)
        states = tuple(replace(s, root=root) if s.step == 4 else s for s in manifest.states)
        return replace(manifest, states=states)

    edit_manifest(copy, rename)
    done = main("verify", "--run", copy, "--step", 4)
    expect(
        done, "BAD_ARTIFACT", 4, "published state 4 has root", "hint: this is the state after step 4, which is state 5"
    )


def test_shifted_labels_with_every_digest_recomputed(main: Cli, parts: Parts, tmp_path: Path) -> None:
    """States 3 and 4 under the names 4 and 5, and the records agree: the pair does not follow from batch 4."""
    lie = parts.copy()
    lie.states[4], lie.states[5] = (replace(parts.states[n - 1], step=n) for n in (4, 5))
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 4)
    expect(done, "MISMATCH", 3, "the published states around step 4 match as step 3", "labels", "shifted by +1")


def test_step_left_out_of_the_training(main: Cli, parts: Parts, tmp_path: Path) -> None:
    """The state after step 4 is that before it, under a new label."""
    lie = parts.copy()
    lie.states[5] = replace(parts.states[4], step=5)
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 4)
    expect(done, "MISMATCH", 3, "7 FAILED  end state root", "first differing field of the record: state_after")


# Whole files


STATE = ["states/00000004/state.json", "states/00000004/shard-00000.safetensors.zst"]


@pytest.mark.parametrize("name", ["records.bin", *STATE])
def test_truncated_files(main: Cli, copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:-7])
    expect(main("verify", "--run", copy, "--step", 4), "BAD_ARTIFACT", 4, path.name, "bytes")


@pytest.mark.parametrize("name", ["stream.bin", "leaves.bin"])
def test_truncated_files_that_are_read_by_range(main: Cli, copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:20])
    expect(main("verify", "--run", copy, "--step", 4), "BAD_ARTIFACT", 4, name)


@pytest.mark.parametrize("name", STATE)
def test_doubled_files(main: Cli, copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes() * 2)
    expect(main("verify", "--run", copy, "--step", 4), "BAD_ARTIFACT", 4, path.name, "bytes")


@pytest.mark.parametrize("name", sorted(GROWING))
def test_what_follows_in_a_file_that_grows_is_not_of_this_manifest(main: Cli, copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes() * 2)
    expect(main("verify", "--run", copy, "--step", 4), "MATCH", 0)


def test_missing_file(main: Cli, copy: Path) -> None:
    (copy / "states/00000004/shard-00000.safetensors.zst").unlink()
    done = main("verify", "--run", copy, "--steps", "3:6")
    expect(done, "UNAVAILABLE", 5, "states/00000004/shard-00000.safetensors.zst", "step 5")
    assert [line for line in done.stdout.splitlines() if line.strip() == "MATCH"]


# The manifest


def test_manifest_with_an_unknown_key(main: Cli, copy: Path) -> None:
    path = copy / "run.json"
    value = json.loads(path.read_bytes())
    value["trusted"] = True
    path.write_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
    done = main("verify", "--run", copy, "--step", 0)
    expect(done, "BAD_ARTIFACT", 4, '"trusted"', "unknown key", "1 FAILED  manifest")


def test_manifest_that_is_no_json(main: Cli, copy: Path) -> None:
    (copy / "run.json").write_bytes(b"\xff\xfe")
    expect(main("verify", "--run", copy, "--step", 0), "BAD_ARTIFACT", 4, "1 FAILED  manifest")


# Step 0


def test_state_0_that_the_seed_does_not_give(main: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[0] = flip_state(parts.states[0], "params", WEIGHT, 3, bit=31)
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 0)
    words = ("state 0 is not what the seed gives", f"first differing tensor: param {WEIGHT} [0, 3]")
    expect(done, "MISMATCH", 3, *words, "4 FAILED  start state root")


def test_other_seed(main: Cli, parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.recipe = replace(parts.recipe, init=replace(parts.recipe.init, seed=8))
    expect(
        main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 0), "MISMATCH", 3, "not what the seed gives"
    )


# A run that was trained wrongly in one step, and published in good faith


def test_planted_mismatch_in_a_run_that_goes_on(main: Cli, parts: Parts, tmp_path: Path) -> None:
    """Step 4 used the wrong learning rate; everything after it follows from what came out."""
    lie = make_run.train_with(parts, wrong_step=4)
    folder = publish(lie, tmp_path / "lie")
    expect(main("verify", "--run", folder, "--step", 5), "MATCH", 0)
    done = main("verify", "--run", folder, "--steps", "3:7")
    expect(done, "MISMATCH", 3, "3 of 4 steps matched")
    found = json.loads(main("verify", "--run", folder, "--steps", "3:7", "--json").stdout)
    verdicts = {step["step"]: step["verdict"] for step in found["steps"]}
    assert verdicts == {3: "MATCH", 4: "MISMATCH", 5: "MATCH", 6: "MATCH"}
