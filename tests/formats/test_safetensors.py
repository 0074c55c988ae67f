"""Safetensors headers: what the library writes is read, what it could not have written is refused in bounded memory."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from auditkit.errors import BadArtifact
from auditkit.formats.safetensors import HeaderEntry, SafetensorsHeader, header_length
from tests.vectors.bad_bytes import header, tensor


def parsed(data: bytes) -> SafetensorsHeader:
    """The header of a whole file."""
    return SafetensorsHeader.parse(data, len(data))


def test_files_of_the_library_are_read_and_printed_back() -> None:
    tensors: dict[str, Any] = {
        "w": np.ones((3, 2), np.float32), "a": np.zeros((), np.int64), "empty": np.zeros((0, 5), np.float32),
        "u": np.arange(3, dtype=np.uint8), "caf\u00e9/\x01\"": np.ones(1, np.float16),
    }  # fmt: skip
    data = safetensors.numpy.save(tensors, {"format": "np"})
    found = parsed(data)
    assert found.encode() == data[: len(found.encode())]
    assert {entry.name: entry.shape for entry in found.tensors} == {
        name: array.shape for name, array in tensors.items()
    }
    assert found.metadata == ("format", "np")
    for entry in found.tensors:
        begin = len(found.encode()) + entry.begin
        assert data[begin : begin + entry.end - entry.begin] == tensors[entry.name].tobytes()


def test_it_writes_what_the_library_writes() -> None:
    tensors: dict[str, Any] = {"a/x": np.ones((3, 2), np.float32), "b": np.ones(1, np.float32)}
    data = safetensors.numpy.save(tensors, {"format": "np"})
    made = SafetensorsHeader.of([("a/x", "F32", (3, 2)), ("b", "F32", (1,))], ("format", "np"))
    assert data == made.encode() + tensors["a/x"].tobytes() + tensors["b"].tobytes()
    assert made.data_size == 28


def test_key_order_and_spacing_are_no_part_of_what_a_file_says() -> None:
    plain = parsed(header({"a": tensor(0, 1, [1], "U8"), "b": tensor(1, 2, [1], "U8")}, b"xy"))
    other = header({"b": tensor(1, 2, [1], "U8"), "a": tensor(0, 1, [1], "U8")}, b"xy")
    spaced = header(json.dumps({"a": tensor(0, 1, [1], "U8"), "b": tensor(1, 2, [1], "U8")}, indent=3).encode(), b"xy")
    for data in (other, spaced):
        assert parsed(data) == plain
        assert data.startswith(parsed(data).encode())


def test_many_metadata_keys_have_no_fixed_order_in_the_library_and_are_refused() -> None:
    metadata = {f"key{i}": str(i) for i in range(10)}
    data = safetensors.numpy.save({"a": np.ones(1, np.float32)}, metadata)
    with pytest.raises(BadArtifact, match="10 metadata keys, at most one is allowed"):
        parsed(data)


def test_empty_tensors_and_scalars_are_valid() -> None:
    found = parsed(header({"e": tensor(0, 0, [0, 5]), "s": tensor(0, 4, []), "z": tensor(4, 4, [5, 0])}, b"\0" * 4))
    assert found.tensors == (
        HeaderEntry("e", "F32", (0, 5), 0, 0), HeaderEntry("s", "F32", (), 0, 4), HeaderEntry("z", "F32", (5, 0), 4, 4)
    )  # fmt: skip


def test_a_file_of_five_gib_needs_only_its_header() -> None:
    size = 5 << 30
    made = SafetensorsHeader.of([("big", "U8", (size,)), ("last", "U8", (1,))])
    found = SafetensorsHeader.parse(made.encode(), len(made.encode()) + size + 1)
    assert (found.tensors[1].begin, found.tensors[1].end) == (size, size + 1)


BOMBS = {
    "2^64-1": b"\xff" * 8 + b"{}",
    "90000000 of 2": (90_000_000).to_bytes(8, "little") + b"{}",
    "0": b"\0" * 8,
    "seven bytes": b"\0" * 7,
    "nothing": b"",
    "many lists": header(b'{"a":[' + b"[]," * 3_000_000 + b"[]]}"),
    "deep": header(b'{"a":' * 1_000_000),
    "spaces": header(b"{" + b" " * 20_000_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_in_an_error_soon_and_in_bounded_memory(name: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(BadArtifact):
        parsed(BOMBS[name])
    seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 5
    assert peak < 150_000_000


def test_the_length_is_checked_before_the_header_is_there() -> None:
    assert header_length((100).to_bytes(8, "little"), 200) == 100
    with pytest.raises(BadArtifact, match="header of 100000001 bytes, at most 100000000"):
        header_length((100_000_001).to_bytes(8, "little"), 1 << 40)
    with pytest.raises(BadArtifact, match="the header is truncated"):
        SafetensorsHeader.parse((100).to_bytes(8, "little") + b"{}", 200)


def test_a_pickle_is_no_header_and_is_not_run(capfd: pytest.CaptureFixture[str]) -> None:
    for protocol in (b"", b"\x80\x04"):
        with pytest.raises(BadArtifact):
            parsed(protocol + b"cos\nsystem\n(S'echo pwned'\ntR.")
    assert capfd.readouterr().out == ""


def test_a_header_made_in_code_is_checked_as_well() -> None:
    with pytest.raises(BadArtifact, match='tensor "a" is listed twice'):
        SafetensorsHeader.of([("a", "F32", (1,)), ("a", "F32", (1,))])
    with pytest.raises(BadArtifact, match='dtype "F31" is unknown'):
        SafetensorsHeader.of([("a", "F31", (1,))])
