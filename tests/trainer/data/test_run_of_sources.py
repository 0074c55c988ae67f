"""A whole run of declared sources: trained, resumed, published in both layouts, verified and derived again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import auditkit
from auditkit.formats.digest import content_digest
from auditkit.formats.run import RunManifest
from auditkit.formats.stream import StreamIndex, decode_frame
from auditkit.replay.data import inspect
from auditkit.replay.run import open_run
from auditkit.verdict import Verdict
from tests.trainer import tiny
from tests.trainer.data import mix
from trainer import cli, prepared
from trainer.batches import open_batches
from trainer.work import Work

SIZES = ["--vocab-size=300", "--context-length=16", "--seed=5", "--title=Two sources", "--license=CC0-1.0"]


def prepare(folder: Path, *more: str) -> Path:
    """A prepared work folder with a recipe."""
    mix.write(folder / "sources")
    work = folder / "work"
    assert mix.prepare(folder / "sources", work, "--source-license=books=MIT", "--shard-bytes=3000", *more) == 0
    (work / "recipe.toml").write_text(tiny.RECIPE, encoding="utf-8", newline="\n")
    return work


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be changed."""
    work = prepare(tmp_path_factory.mktemp("mixed"))
    assert tiny.run(work) == 0
    return work


def publish(work: Path, out: Path, *more: str) -> int:
    """Publish a run."""
    return cli.main(["publish", str(work), str(out), "--name", "mixed", *more])


@pytest.mark.parametrize("layout", [[], ["--compact"]])
def test_what_is_published_is_verified_and_derived(layout: list[str], finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert publish(finished, out, *layout) == 0
    report = auditkit.verify(str(out), steps=f"0:{tiny.STEPS}", device="cpu")
    assert report.verdict is Verdict.MATCH
    with open_run(str(out)) as run:
        for step in (0, 7, tiny.STEPS - 1):
            found = inspect(run, step)
            assert found.verdict is Verdict.MATCH, found.message
            assert {source.license for source in found.sources} <= {"CC0-1.0", "MIT"}


def test_every_file_is_listed_and_copied(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert publish(finished, out) == 0
    manifest = RunManifest.parse((out / "run.json").read_bytes())
    shards = sorted(path.relative_to(out).as_posix() for path in (out / "corpus").rglob("*") if path.is_file())
    assert [path[-10:] for path in shards] == ["/00000.idx", "/00000.zst"] * 2
    for name in ["corpus.json", "tokenizer.json", *shards]:
        assert (out / name).read_bytes() == (finished / name).read_bytes()
        assert manifest.artifact(name).digest == content_digest((out / name).read_bytes())
    assert manifest.format == "auditkit/run/v2"
    assert not [name for name in ("ids.bin", "ids.chk", "prepared.json") if (out / name).exists()]


def test_a_resumed_run_sees_the_same_batches(finished: Path, tmp_path: Path) -> None:
    """Case 70: nothing has to be remembered of where the data were."""
    work = prepare(tmp_path)
    assert tiny.run(work, "--steps", "10") == 0
    assert tiny.resume(work, "--steps", str(tiny.STEPS)) == 0
    tiny.assert_same_run(work, finished)


def test_the_stream_holds_the_batches(finished: Path) -> None:
    work = Work(finished)
    batches = open_batches(work, prepared.load(work), 3)
    stream = (finished / "stream.bin").read_bytes()
    for step, row in enumerate(StreamIndex.parse((finished / "stream.idx").read_bytes()).rows):
        frame = stream[row.offset : row.offset + row.length]
        tokens = decode_frame(frame, row.raw_length, "U16", (3, 17), digest=row.digest)
        assert tokens.tolist() == batches.tokens(step).tolist()


@pytest.mark.parametrize("file", ["corpus/web/00000.zst", "corpus/books/00000.idx", "corpus.json", "ids.bin"])
def test_what_the_disk_has_changed_is_not_published(
    file: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Path(shutil.copytree(finished, tmp_path / "work"))
    data = bytearray((work / file).read_bytes())
    data[len(data) // 2] ^= 1
    (work / file).write_bytes(bytes(data))
    assert publish(work, tmp_path / "out") == 4
    assert Path(file).name in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def ends_after(work: Path) -> int:
    """Steps of three sequences that the data of a work folder have, found by asking for one after the other."""
    batches = open_batches(Work(work), prepared.load(Work(work)), 3)
    for step in range(10_000):
        try:
            batches.tokens(step)
        except auditkit.BadArtifact:
            return step
    raise AssertionError("no end")


def test_a_run_beyond_the_end_of_its_data_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = prepare(tmp_path, "--epochs=1")
    end = ends_after(work)
    assert 12 < end < 24
    recipe = tiny.RECIPE.replace("total_steps = 24", f"total_steps = {end + 5}")
    (work / "recipe.toml").write_text(recipe, encoding="utf-8", newline="\n")
    before = mix.files(work)
    assert tiny.run(work) == 2
    error = capsys.readouterr().err
    assert "the data end after" in error and 'when source "web" has been used for 1 epoch' in error
    assert f"({end + 5} steps of 3)" in error and "hint: fewer --steps, or more --epochs when preparing" in error
    assert mix.files(work) == before
    assert tiny.run(work, "--steps", "12") == 0
    assert tiny.resume(work, "--steps", str(end + 1)) == 2
    assert "the data end after" in capsys.readouterr().err
    assert tiny.resume(work, "--steps", str(end)) == 0
    assert publish(work, tmp_path / "out") == 0
    with open_run(str(tmp_path / "out")) as run:
        assert run.size == end


def test_a_work_folder_of_other_data_is_refused(finished: Path, tmp_path: Path) -> None:
    """The form of the data and that of prepared.json are one."""
    work = Path(shutil.copytree(finished, tmp_path / "work"))
    data = (work / "prepared.json").read_bytes()
    (work / "prepared.json").write_bytes(data.replace(b"prepared/v2", b"prepared/v1"))
    assert tiny.resume(work) == 4
