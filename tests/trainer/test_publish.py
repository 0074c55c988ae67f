"""Publication: everything, checked once more, or nothing at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from auditkit.formats import leaves, merkle, record, stream
from auditkit.formats.digest import ZERO_DIGEST, content_digest
from auditkit.formats.record import RecordFile, expand
from auditkit.formats.run import STATE_INDEX, RunManifest
from auditkit.formats.state import StateDocument, StateIndex
from tests.trainer import tiny
from trainer import cli

FILES = ["records.bin", "leaves.bin", "stream.bin", "stream.idx", "corpus.json", "corpus.txt.zst", "tokenizer.json"]


def _publish(work: Path, out: Path, *more: str) -> int:
    return cli.main(["publish", str(work), str(out), "--name", "tiny", *more])


@pytest.fixture(scope="module")
def published(finished_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "run"
    mirrors = ["--mirror", "https://example.org/runs/tiny", "--mirror", "http://example.net:8080/"]
    assert _publish(finished_once, out, *mirrors) == 0
    return out


def _manifest(out: Path) -> RunManifest:
    return RunManifest.parse((out / "run.json").read_bytes())


def test_the_manifest_lists_every_file_with_size_and_digest(published: Path) -> None:
    manifest = _manifest(published)
    shards = {
        f"{state.path}/{shard.path}": (shard.size, shard.digest)
        for state in manifest.states
        for shard in StateIndex.parse((published / state.path / "index.json").read_bytes()).files
    }
    listed = {artifact.path: (artifact.size, artifact.digest) for artifact in manifest.artifacts} | shards
    found = {
        path.relative_to(published).as_posix(): (path.stat().st_size, content_digest(path.read_bytes()))
        for path in published.rglob("*")
        if path.is_file() and path.name != "run.json"
    }
    assert found == listed
    assert manifest.mirrors == ("https://example.org/runs/tiny", "http://example.net:8080/")


def test_the_files_are_those_of_the_work_folder(published: Path, finished_once: Path) -> None:
    for name in FILES:
        assert (published / name).read_bytes() == (finished_once / name).read_bytes(), name
    assert [state.step for state in _manifest(published).states] == tiny.KEPT
    assert not (published / "ids.bin").exists()


def test_the_log_root_is_that_of_the_chain(published: Path) -> None:
    manifest = _manifest(published)
    rows = RecordFile.parse((published / "records.bin").read_bytes()).rows
    roots = {state.step: state.root for state in manifest.states}
    records = expand(rows, run_id=manifest.run_id(), numerics=1, micro_batches=2, state0=roots[0])
    assert merkle.tree_root([merkle.leaf_hash(r.encode()) for r in records]).hex() == manifest.log.root
    assert manifest.log.size == len(records) == tiny.STEPS
    assert records[0].previous == ZERO_DIGEST
    for state in manifest.states:
        document = StateDocument.parse((published / state.path / "state.json").read_bytes())
        assert document.root() == state.root
        if state.step:
            assert records[state.step - 1].state_after == state.root


def test_publishing_twice_gives_the_same_bytes(published: Path, finished_once: Path, tmp_path: Path) -> None:
    mirrors = ["--mirror", "https://example.org/runs/tiny", "--mirror", "http://example.net:8080/"]
    assert _publish(finished_once, tmp_path / "again", *mirrors) == 0
    assert (tmp_path / "again" / "run.json").read_bytes() == (published / "run.json").read_bytes()


def test_an_existing_folder_is_never_touched(
    finished_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    assert _publish(finished_once, tmp_path / "out") == 2
    assert "exists already" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def _refused(work: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and story of a publication that must fail and leave nothing."""
    code = _publish(work, out)
    assert [path.name for path in out.parent.iterdir() if path != work] == []
    return code, capsys.readouterr().err


def test_an_unfinished_run_is_refused_or_cut_to_its_last_state(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete = str(prepared / "states" / "00000012" / STATE_INDEX)  # states are written in the background
    waiting = f"while not os.path.exists({complete!r}): __import__('time').sleep(0.01)\n            {tiny.KILL_SELF}"
    child = tiny.start_child(tiny.run_arguments(prepared), before=tiny.DIE_IN_APPEND.format(append=84, kill=waiting))
    child.communicate(timeout=tiny.SECONDS)
    assert child.returncode in tiny.KILLED
    code, story = _refused(prepared, tmp_path / "out", capsys)
    assert (code, "the last complete state is that of step 12 of 24" in story) == (9, True), story
    assert _publish(prepared, tmp_path / "out", "--partial") == 0
    manifest = _manifest(tmp_path / "out")
    assert manifest.log.size == 12
    assert [state.step for state in manifest.states] == [0, 6, 9, 12]
    assert (tmp_path / "out" / "records.bin").stat().st_size == len(record.MAGIC) + 12 * record.ROW_BYTES
    assert (tmp_path / "out" / "leaves.bin").stat().st_size == len(leaves.MAGIC) + 24 * leaves.LEAF_BYTES
    index = stream.StreamIndex.parse((tmp_path / "out" / "stream.idx").read_bytes())
    assert (tmp_path / "out" / "stream.bin").stat().st_size == index.total_length


def test_a_run_without_a_step_is_refused(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, story = _refused(prepared, tmp_path / "out", capsys)
    assert (code, "no run has been started here" in story) == (2, True)


def test_a_missing_state_is_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(finished / "states" / "00000009")
    code, story = _refused(finished, tmp_path / "out", capsys)
    assert (code, "the state of step 9 was to be kept and is missing" in story) == (9, True)


@pytest.mark.parametrize(
    ("name", "at", "words"),
    [
        ("records.bin", 16 + 5 * 140, "00000006: state root"),
        ("records.bin", 16 + 3 * 140 + 32, "record 3: its batch digest"),
        ("records.bin", 16 + 3 * 140 + 96, "the leaves of step 3 are not those of its record"),
        ("records.bin", 16 + 12 * 140, "records.bin: record 12, or its leaves, are not what was written"),
        ("records.bin", 16 + 12 * 140 + 64, "records.bin: record 12, or its leaves, are not what was written"),
        ("records.bin", 16 + 12 * 140 + 128, "records.bin: record 12: its loss does not follow from its leaves"),
        ("records.bin", 16 + 12 * 140 + 132, "records.bin: record 12, or its leaves, are not what was written"),
        (
            "records.bin",
            16 + 12 * 140 + 136,
            "records.bin: record 12: its lr does not follow from",
        ),
        ("checks.bin", 12 * 32, "(checks.bin)"),
        ("leaves.bin", 16 + 7 * 80 + 3, "the leaves of step 7 are not those of its record"),
        ("stream.idx", 16 + 4 * 48 + 20, "token frame"),
        ("stream.bin", 300, "token frame"),
        ("corpus.txt.zst", -40, "corpus.txt.zst"),
        ("corpus.json", 30, "changed since it was prepared"),
        ("tokenizer.json", 300, "changed since it was prepared"),
        ("ids.bin", 11, "changed since it was prepared"),
        ("states/00000009/shard-00000.safetensors.zst", 900, "not the bytes its digest names"),
        ("states/00000009/state.json", 100, "state document"),
    ],
)
def test_a_flipped_bit_anywhere_stops_the_publication(
    name: str, at: int, words: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((finished / name).read_bytes())
    data[at] ^= 1
    (finished / name).write_bytes(data)
    code, story = _refused(finished, tmp_path / "out", capsys)
    assert code == 4, story
    assert words in story


def test_a_work_folder_from_before_the_checks_is_published_with_a_note(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "checks.bin").unlink()
    assert _publish(finished, tmp_path / "out") == 0
    assert "note: no checks.bin in" in capsys.readouterr().err


def test_states_that_changed_places_are_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(finished / "states" / "00000009")
    shutil.copytree(finished / "states" / "00000006", finished / "states" / "00000009")
    code, story = _refused(finished, tmp_path / "out", capsys)
    assert (code, "holds the state of step 6" in story) == (4, True)


def test_a_forged_initial_state_is_refused(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """State 0 follows from the recipe's seed: a whole run from other initial weights is not published under it."""
    text = (finished / "recipe.json").read_text(encoding="utf-8")
    (finished / "recipe.json").write_text(text.replace('"seed":7', '"seed":8'), encoding="utf-8")
    code, story = _refused(finished, tmp_path / "out", capsys)
    assert (code, "a state of another recipe" in story) == (4, True)


@pytest.mark.parametrize("name", ["", "../x", "a b", "CON", "x" * 101])
def test_a_name_that_no_folder_may_have_is_refused(
    name: str, finished_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["publish", str(finished_once), str(tmp_path / "out"), "--name", name]) == 2
    assert "error: --name" in capsys.readouterr().err


@pytest.mark.parametrize(
    "mirrors",
    [
        ["ftp://example.org/"],
        ["http://a:99999/x"],
        ["http://a:0"],
        ["https://u:p@example.org/"],
        ["https://a/?q"],
        ["http://1.2.3.400/"],
        ["https://a/", "https://a/"],
        [f"https://a/{n}" for n in range(33)],
    ],
)
def test_a_mirror_that_is_no_plain_address_is_refused_before_anything_is_read(
    mirrors: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [word for mirror in mirrors for word in ("--mirror", mirror)]
    assert _publish(tmp_path / "no-work-folder", tmp_path / "out", *more) == 2
    assert capsys.readouterr().err.startswith("error: --mirror: ")
    assert list(tmp_path.iterdir()) == []
