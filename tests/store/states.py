"""A state's files for tests: random tensors, their document, index and shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from auditkit.formats.digest import content_digest
from auditkit.formats.safetensors import SafetensorsHeader
from auditkit.formats.state import HEADER_ROLE, FrameEntry, ShardEntry, StateDocument, StateIndex, shard_key
from auditkit.formats.tensors import TensorEntry, dtype_name
from auditkit.formats.zstd import compress

Arrays = dict[tuple[str, str], NDArray[np.float32]]
Encode = Callable[[bytes], bytes]


def random_arrays(shapes: Sequence[tuple[int, ...]], seed: int = 7) -> Arrays:
    """One tensor of each shape and role, of normal numbers."""
    random = np.random.default_rng(seed)
    return {
        (role, f"t{number}"): random.standard_normal(shape, dtype=np.float32)
        for role in ("adam_m", "adam_v", "param")
        for number, shape in enumerate(shapes)
    }


def document_of(arrays: Arrays) -> StateDocument:
    """The document of these tensors."""
    return StateDocument.of(3, 12, 1, "0" * 64, (TensorEntry.of(name, role, a) for (role, name), a in arrays.items()))


def write_state(folder: Path, arrays: Arrays, *, shards: int = 2, encode: Encode = compress) -> StateIndex:
    """Write the shards of a state and return their index; `encode` makes the frames."""
    keys = sorted(arrays)
    cuts = [keys[i::shards] for i in range(shards)]
    entries = [
        write_shard(folder / f"shard-{i:05}.safetensors.zst", part, arrays, encode) for i, part in enumerate(cuts)
    ]
    return StateIndex(tuple(entries))


def write_shard(path: Path, keys: Sequence[tuple[str, str]], arrays: Arrays, encode: Encode) -> ShardEntry:
    """Write one shard with these tensors, in this order."""
    header = SafetensorsHeader.of((shard_key(*k), dtype_name(arrays[k].dtype), arrays[k].shape) for k in keys).encode()
    raws = [(HEADER_ROLE, "", header), *((*k, arrays[k].tobytes()) for k in keys)]
    frames, data = [], bytearray()
    for role, name, raw in raws:
        frame = encode(raw)
        frames.append(FrameEntry(name, role, len(data), len(frame), len(raw)))
        data += frame
    path.write_bytes(data)
    return ShardEntry(path.name, len(data), content_digest(bytes(data)), tuple(frames))
