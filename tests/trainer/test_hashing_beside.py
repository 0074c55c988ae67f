"""Work beside the training asks nothing of BLAKE3's pool of threads, where the training's own digests would queue."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from auditkit.formats import digest
from tests.trainer import tiny


def test_who_writes_and_publishes_hashes_in_one_thread(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, bool, int]] = set()  # which thread, whether all bytes at once, threads asked for

    class Noted:
        AUTO = blake3.AUTO

        def __init__(self, *data: Any, max_threads: int = 1, **options: Any) -> None:
            self._most, self._made = max_threads, blake3(*data, max_threads=max_threads, **options)
            if data:
                self._note(whole=True)

        def update(self, data: Any) -> None:
            self._note(whole=False)
            self._made.update(data)

        def hexdigest(self) -> str:
            return self._made.hexdigest()

        def _note(self, *, whole: bool) -> None:
            seen.add((threading.current_thread().name.split("_")[0], whole, self._most))

    monkeypatch.setattr(digest, "blake3", Noted)
    monkeypatch.setattr(digest, "THREADS_FROM_BYTES", 0)
    assert tiny.run(prepared, "--publish", str(tmp_path / "out"), "--name", "beside") == 0
    beside = {found for found in seen if found[0] in ("state", "compress", "publish")}
    documents = {("publish", True, blake3.AUTO), ("state", True, blake3.AUTO)}  # which are small
    assert beside - documents == {("state", False, 1), ("compress", True, 1), ("publish", False, 1)}
    assert ("MainThread", True, blake3.AUTO) in seen
