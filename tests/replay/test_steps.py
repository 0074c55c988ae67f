"""The compact layout: the same steps and records as the stored one, and no lie in what is left of them."""

from __future__ import annotations

import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import auditkit
from auditkit.errors import BadArtifact
from auditkit.formats import compact as compact_format
from auditkit.formats import zstd
from auditkit.formats.corpus import CorpusIndex
from auditkit.formats.digest import content_digest
from auditkit.formats.record import expand
from auditkit.formats.run import Log, RunManifest
from auditkit.replay.data import inspect
from auditkit.replay.fetch import fetch
from auditkit.replay.report import Report
from auditkit.replay.run import default_run, open_run
from auditkit.replay.selection import select
from auditkit.verdict import Verdict
from tests.replay import make_compact, make_run
from tests.replay.make_compact import LayoutRows, publish
from tests.replay.make_run import Parts, flip
from tests.store.servers import Server, serve
from tests.store.servers import honest as honest_server


def test_every_step_matches_in_either_layout(honest: Path, compact: Path) -> None:
    stored, derived = (auditkit.verify(str(folder), steps="0:8") for folder in (honest, compact))
    assert stored.verdict is derived.verdict is Verdict.MATCH
    assert [step.computed for step in stored.steps] == [step.computed for step in derived.steps]
    assert "token ids, from which the batches were cut" in " ".join(derived.not_checked)


def test_the_chain_is_that_of_the_stored_rows(parts: Parts, compact: Path) -> None:
    """Byte for byte the records that `records.bin` of the first layout gives under the same run id."""
    with open_run(str(compact)) as run:
        chain = expand(
            make_run.rows_of(parts),
            run_id=run.run_id,
            numerics=1,
            micro_batches=2,
            state0=run.state0,
        )
        assert [record.encode() for record in run.records] == [record.encode() for record in chain]
        assert run.log_root == run.manifest.log.root


def test_steps_are_the_same_in_either_layout(honest: Path, compact: Path) -> None:
    with open_run(str(honest)) as stored, open_run(str(compact)) as derived:
        assert stored.run_id != derived.run_id
        for step, (a, b) in enumerate(zip(stored.records, derived.records, strict=True)):
            assert replace(a, run=b.run, previous=b.previous) == b
            assert np.array_equal(stored.tokens(step), derived.tokens(step))
            assert stored.leaves(step) == derived.leaves(step)


def test_nothing_that_can_be_derived_is_stored(compact: Path) -> None:
    names = {path.name for path in compact.iterdir()}
    assert names == {
        "run.json",
        "records.bin",
        "ids.bin.zst",
        "corpus.json",
        "corpus.txt.zst",
        "tokenizer.json",
        "states",
    }
    assert (compact / "records.bin").stat().st_size == 16 + 8 * (68 + 2 * 40)


# Lies


def _verify(folder: Path, step: int = 4) -> Report:
    return auditkit.verify(str(folder), step=step)


@pytest.mark.parametrize(("name", "at"), [("ids.bin.zst", 60), ("records.bin", 16), ("records.bin", 16 + 148 * 7 + 70)])
def test_a_flipped_byte_is_not_what_its_digest_names(compact: Path, tmp_path: Path, name: str, at: int) -> None:
    copy = Path(shutil.copytree(compact, tmp_path / "copy"))
    data = bytearray((copy / name).read_bytes())
    data[at] ^= 1
    (copy / name).write_bytes(bytes(data))
    report = _verify(copy)
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert name in report.message


def _with_artifacts(folder: Path) -> Path:
    """Let the manifest name the files as they are now."""
    manifest = RunManifest.parse((folder / "run.json").read_bytes())
    (folder / "run.json").write_bytes(replace(manifest, artifacts=make_run.artifacts(folder)).encode())
    return folder


def test_other_ids_under_a_new_file_digest_are_not_those_of_the_manifest(
    parts: Parts, compact: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(compact, tmp_path / "copy"))
    (copy / "ids.bin.zst").write_bytes(zstd.compress(flip(parts.ids, 20)))
    report = _verify(_with_artifacts(copy))
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert "ids.bin.zst: token ids: the ids have digest" in report.message


def test_ids_outside_the_vocabulary_are_refused(parts: Parts, compact: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(compact, tmp_path / "copy"))
    lie = parts.copy()
    lie.ids = parts.ids.copy()
    lie.ids[3] = 300
    (copy / "ids.bin.zst").write_bytes(zstd.compress(lie.ids))
    manifest = RunManifest.parse((copy / "run.json").read_bytes())
    changed = replace(manifest, data=make_compact.data_spec(lie), artifacts=make_run.artifacts(copy))
    (copy / "run.json").write_bytes(changed.encode())
    with open_run(str(copy)) as run, pytest.raises(BadArtifact, match="id 300 at 3 is outside a vocabulary of 300"):
        run.records  # noqa: B018 - reading them is what fails


@pytest.mark.parametrize("at", [16, 16 + 32, 16 + 64, 16 + 68, 16 + 76, 16 + 148 * 3])
def test_a_changed_row_under_a_new_file_digest_has_another_log_root(compact: Path, tmp_path: Path, at: int) -> None:
    """State root, gradient, norm, loss sum and gradient of a leaf: all of them are in the log."""
    copy = Path(shutil.copytree(compact, tmp_path / "copy"))
    data = bytearray((copy / "records.bin").read_bytes())
    data[at] ^= 1
    (copy / "records.bin").write_bytes(bytes(data))
    report = _verify(_with_artifacts(copy))
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert "log root" in report.message or "published state 4 has root" in report.message


def test_ids_that_everything_agrees_with_are_found_by_the_replay_and_by_the_text(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    batch = parts.batches[4]
    place = next(i for i in range(len(parts.ids)) if np.array_equal(parts.ids[i : i + 17], batch[0]))
    lie.ids = flip(parts.ids, place + 5)
    folder = publish(lie, tmp_path / "lie")
    report = _verify(folder)
    assert report.verdict is Verdict.MISMATCH
    assert report.steps[0].differences[0].field.startswith("micro_batches[0].")
    with open_run(str(folder)) as run:
        seen = inspect(run, 4)
    assert seen.verdict is Verdict.MISMATCH
    assert f"(token {place + 5} of the corpus)" in seen.message


def _norm(steps: LayoutRows) -> None:
    steps[4] = replace(steps[4], norm=steps[4].norm ^ 1)


def _loss(steps: LayoutRows) -> None:
    leaf = replace(steps[4].leaves[1], loss_sum=steps[4].leaves[1].loss_sum + 1)
    steps[4] = replace(steps[4], leaves=(steps[4].leaves[0], leaf))


def _leaf(steps: LayoutRows) -> None:
    leaf = replace(steps[4].leaves[0], gradient=content_digest(b"another"))
    steps[4] = replace(steps[4], leaves=(leaf, steps[4].leaves[1]))


def _gradient(steps: LayoutRows) -> None:
    steps[4] = replace(steps[4], gradient=content_digest(b"another"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_norm, "norm"),
        (_loss, "micro_batches[1].loss_sum"),
        (_leaf, "micro_batches[0].gradient"),
        (_gradient, "gradient"),
    ],
)
def test_a_consistent_lie_about_a_step_is_a_mismatch(
    parts: Parts, tmp_path: Path, change: Callable[[LayoutRows], None], field: str
) -> None:
    report = _verify(publish(parts, tmp_path / "lie", change))
    assert report.verdict is Verdict.MISMATCH
    assert report.steps[0].differences[0].field == field
    assert _verify(tmp_path / "lie", 5).verdict is Verdict.MATCH


def test_a_learning_rate_other_than_the_recipe_s_cannot_even_be_claimed(parts: Parts, tmp_path: Path) -> None:
    """It is derived; records that were made with another do not have the manifest's log root."""
    folder = publish(parts, tmp_path / "lie")
    manifest = RunManifest.parse((folder / "run.json").read_bytes())
    schedule = replace(manifest.recipe.schedule, min_lr=0.0)
    recipe = replace(manifest.recipe, schedule=schedule)
    (folder / "run.json").write_bytes(replace(manifest, recipe=recipe).encode())
    report = _verify(folder)
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert "log root" in report.message


# What the ids follow from


def test_the_ids_follow_from_the_corpus(compact: Path) -> None:
    with open_run(str(compact)) as run:
        for step in range(run.size):
            report = inspect(run, step)
            assert report.verdict is Verdict.MATCH
            assert report.derived is not None


def test_an_id_that_the_step_did_not_see_must_follow_as_well(parts: Parts, tmp_path: Path) -> None:
    seen = np.concatenate([batch.reshape(-1) for batch in make_compact.batches_of(parts)])
    lie = parts.copy()
    last = len(parts.ids) - 2  # behind the last whole window, so that no step ever sees it
    assert (len(parts.ids) - 1) // 16 * 16 < last and seen.size
    lie.ids = flip(parts.ids, last)
    folder = publish(lie, tmp_path / "lie")
    assert _verify(folder).verdict is Verdict.MATCH
    with open_run(str(folder)) as run:
        report = inspect(run, 4)
    assert report.verdict is Verdict.MISMATCH
    assert f"(token {last} of the corpus)" in report.message


def test_as_many_ids_as_the_corpus_has_tokens(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    first, *rest = parts.corpus.documents
    lie.corpus = CorpusIndex((replace(first, tokens=first.tokens - 1), *rest))
    lie.data = replace(parts.data, corpus=replace(parts.data.corpus, digest=content_digest(lie.corpus.encode())))
    with open_run(str(publish(lie, tmp_path / "lie"))) as run, pytest.raises(BadArtifact, match="ids"):
        inspect(run, 0)


# Fetching


@pytest.fixture
def server(compact: Path) -> Iterator[Server]:
    """The compact run behind a static server that knows ranges."""
    files = {f"run/{p.relative_to(compact).as_posix()}": p.read_bytes() for p in compact.rglob("*") if p.is_file()}
    with serve(honest_server, files) as running:
        yield running


def test_fetch_brings_records_ids_and_states_and_verify_needs_no_more(server: Server, tmp_path: Path) -> None:
    address = f"{server.url}run"
    done = fetch(address, select(step=4), cache_dir=tmp_path)
    assert {asked.path.removeprefix("run/") for asked in server.asked} == {
        "run.json",
        "records.bin",
        "ids.bin.zst",
        *(f"states/{s}/{f}" for s in ("00000004", "00000005") for f in ("state.json", "index.json")),
        *(f"states/{s}/shard-00000.safetensors.zst" for s in ("00000004", "00000005")),
    }
    assert done.needs.ranges == ()
    assert 0 < done.fetched <= done.needs.total
    assert fetch(address, select(step=4), cache_dir=tmp_path).fetched == 0
    before = len(server.asked)
    report = auditkit.verify(address, step=4, offline=True, cache_dir=tmp_path)
    assert report.verdict is Verdict.MATCH
    assert len(server.asked) == before


# Size


def _long(compact: Path, folder: Path, steps: int) -> Path:
    """The run with random records of many steps, which parse and chain like any other."""
    copy = Path(shutil.copytree(compact, folder))
    manifest = RunManifest.parse((copy / "run.json").read_bytes())
    body = np.random.default_rng(1).integers(0, 256, (steps, compact_format.row_bytes(2)), dtype=np.uint8)
    body[:, 67] = 0x3F  # exponents of finite norms
    body[:, [75, 115]] = 0  # loss sums below 2^56
    (copy / "records.bin").write_bytes(compact_format.MAGIC + body.tobytes())
    changed = replace(
        manifest,
        recipe=replace(manifest.recipe, schedule=replace(manifest.recipe.schedule, total_steps=steps)),
        log=Log(steps, manifest.log.root),
        artifacts=make_run.artifacts(copy),
        states=manifest.states[:1],
    )
    (copy / "run.json").write_bytes(changed.encode())
    return copy


def test_fifty_thousand_steps_are_read_in_seconds(compact: Path, tmp_path: Path) -> None:
    with open_run(str(_long(compact, tmp_path / "long", 50_000))) as run:
        began = time.process_time()
        assert len(run.records) == 50_000
        assert run.log_root
    assert time.process_time() - began < 10  # 1.6 s where this was written


def test_a_step_takes_a_few_kilobytes_of_memory(compact: Path, tmp_path: Path) -> None:
    with open_run(str(_long(compact, tmp_path / "long", 3000))) as run:
        tracemalloc.start()
        assert len(run.records) == 3000
        assert run.log_root
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 3000 * 6000  # 300 MB for 50,000 steps


def test_the_default_run_is_the_newest_that_is_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    for names, expected in (
        (("open-nano", "sotu-tiny"), "open-nano"),
        (("a", "sotu-tiny"), "sotu-tiny"),
        (("a", "b"), "a"),
    ):
        monkeypatch.setattr("auditkit.replay.run.known", lambda names=names: names)
        assert default_run() == expected
