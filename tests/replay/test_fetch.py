"""Fetching over HTTP: exactly what a verification reads, and a verification offline afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import auditkit
from auditkit.errors import Unavailable
from auditkit.replay.fetch import fetch
from auditkit.replay.selection import select
from auditkit.verdict import Verdict
from tests.store.servers import Server, serve
from tests.store.servers import honest as honest_server


@pytest.fixture
def server(honest: Path) -> Iterator[Server]:
    """The honest run behind a static server that knows ranges."""
    files = {f"run/{p.relative_to(honest).as_posix()}": p.read_bytes() for p in honest.rglob("*") if p.is_file()}
    with serve(honest_server, files) as running:
        yield running


def test_fetch_brings_the_pair_and_nothing_else(server: Server, tmp_path: Path) -> None:
    done = fetch(f"{server.url}run", select(step=4), cache_dir=tmp_path)
    assert {asked.path.removeprefix("run/") for asked in server.asked} == {
        "run.json",
        "records.bin",
        "leaves.bin",
        "stream.bin",
        "stream.idx",
        *(f"states/{s}/{f}" for s in ("00000004", "00000005") for f in ("state.json", "index.json")),
        *(f"states/{s}/shard-00000.safetensors.zst" for s in ("00000004", "00000005")),
    }
    ranges = {asked.path: asked.range for asked in server.asked if asked.range}
    assert {path.removeprefix("run/") for path in ranges} >= {"leaves.bin", "stream.bin"}
    assert done.fetched > 0
    assert fetch(f"{server.url}run", select(step=4), cache_dir=tmp_path).fetched == 0


def test_verify_offline_after_fetch(server: Server, tmp_path: Path) -> None:
    address = f"{server.url}run"
    fetch(address, select(steps="4:7"), cache_dir=tmp_path)
    before = len(server.asked)
    report = auditkit.verify(address, steps="4:7", offline=True, cache_dir=tmp_path)
    assert report.verdict is Verdict.MATCH
    assert len(server.asked) == before


def test_offline_without_a_cache_is_unavailable(server: Server, tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        fetch(f"{server.url}run", select(step=4), cache_dir=tmp_path, offline=True)
    report = auditkit.verify(f"{server.url}run", step=4, offline=True, cache_dir=tmp_path)
    assert report.verdict is Verdict.UNAVAILABLE
    assert not server.asked


def test_verify_reads_no_more_than_fetch_brings(server: Server, tmp_path: Path) -> None:
    assert auditkit.verify(f"{server.url}run", step=6, cache_dir=tmp_path).verdict is Verdict.MATCH
    verified = {asked.path for asked in server.asked}
    server.asked.clear()
    fetch(f"{server.url}run", select(step=6), cache_dir=tmp_path / "other")
    assert verified == {asked.path for asked in server.asked}


def test_a_state_that_the_server_lacks_spoils_its_own_steps_only(server: Server, tmp_path: Path) -> None:
    """Case 71."""
    del server.files["run/states/00000004/shard-00000.safetensors.zst"]
    report = auditkit.verify(f"{server.url}run", steps="4:7", cache_dir=tmp_path)
    verdicts = {step.step: step.verdict for step in report.steps}
    assert verdicts == {4: Verdict.UNAVAILABLE, 5: Verdict.MATCH, 6: Verdict.MATCH}
    assert report.verdict is Verdict.UNAVAILABLE
