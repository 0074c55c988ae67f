"""The stream that was trained on: every batch cut from the ids in the declared order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from auditkit.formats.stream import StreamIndex, decode_frame
from auditkit.numerics.shuffle import window_order
from tests.trainer import tiny


def test_the_stream_holds_the_batches(finished_once: Path) -> None:
    ids = np.fromfile(finished_once / "ids.bin", "<u2")
    windows = (len(ids) - 1) // tiny.CONTEXT
    stream = (finished_once / "stream.bin").read_bytes()
    order = [w for epoch in range(20) for w in window_order(5, epoch, windows).tolist()]
    for step, row in enumerate(StreamIndex.parse((finished_once / "stream.idx").read_bytes()).rows):
        frame = stream[row.offset : row.offset + row.length]
        tokens = decode_frame(frame, row.raw_length, "U16", (3, tiny.CONTEXT + 1), digest=row.digest)
        for sequence, window in zip(tokens, order[3 * step : 3 * step + 3], strict=True):
            assert sequence.tolist() == ids[window * 16 : window * 16 + 17].tolist()
