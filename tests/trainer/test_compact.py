"""Publication in the compact layout: the same run, without a byte that follows from another."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

import auditkit
from auditkit.formats.digest import content_digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.record import RecordFile, expand
from auditkit.formats.run import Ids, RunManifest
from auditkit.formats.zstd import decompress
from auditkit.replay.run import open_run
from auditkit.verdict import Verdict
from tests.trainer import tiny
from trainer import cli


def _publish(work: Path, out: Path, *more: str) -> int:
    return cli.main(["publish", str(work), str(out), "--name", "tiny", "--compact", *more])


@pytest.fixture(scope="module")
def published(finished_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compact") / "run"
    assert _publish(finished_once, out) == 0
    return out


def _manifest(out: Path) -> RunManifest:
    return RunManifest.parse((out / "run.json").read_bytes())


def test_more_ids_than_a_verifier_holds_are_refused(
    finished_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainer.compact.LIMITS", replace(LIMITS, ids_bytes=100))
    assert _publish(finished_once, tmp_path / "run") == 2
    assert "bytes of ids, a compact run has at most 100" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_every_step_matches(published: Path) -> None:
    report = auditkit.verify(str(published), steps=f"0:{tiny.STEPS}")
    assert report.verdict is Verdict.MATCH
    assert len(report.steps) == tiny.STEPS


def test_the_chain_is_that_of_the_rows_that_were_trained(published: Path, finished_once: Path) -> None:
    rows = RecordFile.parse((finished_once / "records.bin").read_bytes()).rows
    with open_run(str(published)) as run:
        chain = expand(rows, run_id=run.run_id, numerics=1, micro_batches=2, state0=run.state0)
        assert run.records == chain
        assert run.log_root == run.manifest.log.root


def test_the_data_section_names_the_ids(published: Path, finished_once: Path, tmp_path: Path) -> None:
    raw = (finished_once / "ids.bin").read_bytes()
    data = _manifest(published).data
    assert data.ids == Ids(len(raw) // 2, content_digest(raw), "ids.bin.zst")
    assert decompress((published / "ids.bin.zst").read_bytes(), size=len(raw), what="ids") == raw
    assert cli.main(["publish", str(finished_once), str(tmp_path / "stored"), "--name", "tiny"]) == 0
    assert replace(data, kind="frames", ids=None) == _manifest(tmp_path / "stored").data


def test_nothing_else_is_there(published: Path) -> None:
    manifest = _manifest(published)
    listed = {artifact.path for artifact in manifest.artifacts}
    shards = {f"{state.path}/shard-00000.safetensors.zst" for state in manifest.states}
    found = {path.relative_to(published).as_posix() for path in published.rglob("*") if path.is_file()}
    assert found == listed | shards | {"run.json"}
    assert {path for path in found if "/" not in path} == {
        "run.json", "records.bin", "ids.bin.zst", "corpus.json", "corpus.txt.zst", "tokenizer.json"
    }  # fmt: skip
    assert (published / "records.bin").stat().st_size == 16 + tiny.STEPS * (68 + 2 * 40)


def test_publishing_twice_gives_the_same_bytes(published: Path, finished_once: Path, tmp_path: Path) -> None:
    assert _publish(finished_once, tmp_path / "again") == 0
    assert (tmp_path / "again" / "run.json").read_bytes() == (published / "run.json").read_bytes()


def _change(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (128, "record 3: its loss does not follow"),
        (136, "record 3: its lr does not follow"),
        (96, "the leaves of step 3 are not those of its record"),
        (32, "record 3: its batch digest"),
    ],
)
def test_what_a_verifier_would_derive_otherwise_is_not_published(
    at: int, words: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(finished / "records.bin", 16 + 3 * 140 + at)
    assert _publish(finished, tmp_path / "out") == 4
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_leaf_and_its_record_that_agree_on_another_loss_are_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "leaves.bin"
    data = bytearray(path.read_bytes())
    struct.pack_into("<q", data, 16 + 3 * 80, 1 << 40)
    path.write_bytes(data)
    assert _publish(finished, tmp_path / "out") == 4
    assert "step 3" in capsys.readouterr().err


def test_ids_that_changed_are_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _change(finished / "ids.bin", 11)
    assert _publish(finished, tmp_path / "out") == 4
    assert "changed since it was prepared" in capsys.readouterr().err


@pytest.mark.parametrize(("chosen", "steps"), [("9", [0, 9, 24]), ("6,18", [0, 6, 18, 24]), ("0,24", [0, 24])])
def test_states_can_be_chosen(chosen: str, steps: list[int], finished_once: Path, tmp_path: Path) -> None:
    assert _publish(finished_once, tmp_path / "out", "--states", chosen) == 0
    assert [state.step for state in _manifest(tmp_path / "out").states] == steps
    assert auditkit.verify(str(tmp_path / "out"), step=20).verdict is Verdict.MATCH


@pytest.mark.parametrize("chosen", ["5", "30"])
def test_a_state_that_is_not_there_cannot_be_chosen(
    chosen: str, finished_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _publish(finished_once, tmp_path / "out", "--states", chosen) == 2
    assert f"there is no complete state of step {chosen}" in capsys.readouterr().err


def test_an_unfinished_run_is_cut_to_its_last_state(prepared: Path, tmp_path: Path) -> None:
    assert tiny.run(prepared, "--steps", "12") == 0
    assert _publish(prepared, tmp_path / "out", "--partial") == 0
    assert _manifest(tmp_path / "out").log.size == 12
    assert auditkit.verify(str(tmp_path / "out"), step=11).verdict is Verdict.MATCH
