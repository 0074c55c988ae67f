"""exp and log over every binary32 word: a card against digests that the reference made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.formats.digest import content_digest
from auditkit.kernels.exp import exp
from auditkit.kernels.log import log
from tests.kernels.make_all_words import CHUNK, CHUNKS, OPS, chunk_digest, load, words
from tests.kernels.on_devices import real_device

LAUNCHERS: dict[str, Any] = {"exp": exp, "log": log}
AGAIN = {"exp": 48, "log": 15}  # around -2 and -8; around 1/4 and 1


@pytest.mark.parametrize("op", list(OPS))
def test_the_generator_makes_a_committed_digest(op: str) -> None:
    digests = load(op)
    assert len(digests) == CHUNKS
    assert chunk_digest(op, AGAIN[op]) == digests[AGAIN[op]]


@pytest.mark.gpu
@pytest.mark.optional("CI has no GPU; the emulator runs the same source on the vectors")
@pytest.mark.parametrize("op", list(OPS))
def test_all_words_on_a_card(op: str) -> None:
    device = real_device()
    with device.use():
        for chunk, digest in enumerate(load(op)):
            x = device.upload(words(chunk * CHUNK, CHUNK).view(np.float32))
            got = device.download(LAUNCHERS[op](device, x))
            assert content_digest(got) == digest, f"words from {chunk * CHUNK:08x}"
