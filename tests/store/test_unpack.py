"""Tensors of a state: all frames checked, loaded, or fetched alone; memory; what does not fit together is named."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.digest import content_digest
from auditkit.formats.state import FrameEntry, StateDocument, StateIndex
from auditkit.formats.zstd import compress
from auditkit.store.unpack import check_tensors, fetch_tensor, load_tensors
from tests.store import states
from tests.store.conftest import Shop
from tests.store.servers import flip, honest, serve
from tests.store.test_inflate import streamed
from tests.store.tools import Story

ROOT = Path(__file__).resolve().parents[2]
SHAPES = [(300, 1000), (64,), (), (3, 0, 2), (2, 3, 5)]


@dataclasses.dataclass
class Saved:
    """A state on disk."""

    folder: Path
    arrays: states.Arrays
    document: StateDocument
    index: StateIndex

    @property
    def shards(self) -> dict[str, Path]:
        """Where the shards lie."""
        return {shard.path: self.folder / shard.path for shard in self.index.files}


@pytest.fixture(params=["one shard", "three shards", "streamed frames"])
def saved(tmp_path: Path, request: pytest.FixtureRequest) -> Saved:
    """A small state with tensors of all kinds of shapes."""
    return save(
        tmp_path / "state", 1 if request.param == "one shard" else 3, streamed if "str" in request.param else compress
    )


def save(folder: Path, shards: int = 2, encode: Callable[[bytes], bytes] = compress) -> Saved:
    """A state in a folder."""
    folder.mkdir()
    arrays = states.random_arrays(SHAPES)
    return Saved(
        folder, arrays, states.document_of(arrays), states.write_state(folder, arrays, shards=shards, encode=encode)
    )


@pytest.fixture
def plain(tmp_path: Path) -> Saved:
    """One such state."""
    return save(tmp_path / "state")


def same_bits(found: dict[tuple[str, str], np.ndarray], wanted: dict[tuple[str, str], np.ndarray]) -> bool:  # type: ignore[type-arg]
    """Same names, dtypes, shapes and bytes."""
    assert found.keys() == wanted.keys()
    return all(
        (f.dtype, f.shape, f.tobytes()) == (w.dtype, w.shape, w.tobytes())
        for f, w in ((found[key], wanted[key]) for key in wanted)
    )


def test_every_tensor_is_checked_and_loaded(saved: Saved, story: Story) -> None:
    check_tensors(saved.shards, saved.document, saved.index, progress=story)
    assert story.tasks == [("unpacking", saved.document.nbytes)] and story.done == story.total
    loaded = load_tensors(saved.shards, saved.document, saved.index, progress=story)
    assert same_bits(loaded, saved.arrays)
    assert all(array.flags.writeable and array.flags.c_contiguous for array in loaded.values())


def test_some_tensors_are_loaded(plain: Saved) -> None:
    names = [("param", "t0"), ("adam_v", "t3")]
    loaded = load_tensors(plain.shards, plain.document, plain.index, names=names)
    assert same_bits(loaded, {key: plain.arrays[key] for key in names})
    assert load_tensors(plain.shards, plain.document, plain.index, names=[]) == {}
    with pytest.raises(KeyError):
        load_tensors(plain.shards, plain.document, plain.index, names=[("param", "nothing")])


def test_one_bit_of_one_tensor_is_found_and_named(plain: Saved) -> None:
    changed = {key: array.copy() for key, array in plain.arrays.items()}
    changed["adam_v", "t0"].view(np.uint32)[299, 999] ^= 1
    index = states.write_state(plain.folder, changed)
    for work in (check_tensors, load_tensors):
        with pytest.raises(BadArtifact) as error:
            work(plain.shards, plain.document, index)  # type: ignore[operator]
        found = content_digest(changed["adam_v", "t0"])
        wanted = content_digest(plain.arrays["adam_v", "t0"])
        assert error.value.message.endswith(f"tensor adam_v/t0 has digest {found}, the state document says {wanted}")


@pytest.mark.parametrize("at", [0, 5, -1], ids=["the header's frame", "inside it", "the last frame"])
def test_damaged_shards_are_bad_artifacts(plain: Saved, at: int) -> None:
    path = plain.folder / plain.index.files[0].path
    path.write_bytes(flip(path.read_bytes(), at))
    with pytest.raises(BadArtifact) as error:
        check_tensors(plain.shards, plain.document, plain.index)
    assert error.value.message.startswith("shard-00000.safetensors.zst: ")


def test_a_shard_that_is_gone_is_unavailable(plain: Saved) -> None:
    (plain.folder / plain.index.files[1].path).unlink()
    with pytest.raises(Unavailable, match="cannot read"):
        check_tensors(plain.shards, plain.document, plain.index)


def reordered(index: StateIndex) -> StateIndex:
    """Two frames of the first shard have each other's names (and both are of one size, so nothing else tells)."""
    shard = index.files[0]
    same = [f for f in shard.frames[1:] if f.raw_length == 1_200_000][:2]
    swap = {same[0]: same[1], same[1]: same[0]}
    frames = tuple(
        dataclasses.replace(f, name=swap[f].name, role=swap[f].role) if f in swap else f for f in shard.frames
    )
    return StateIndex((dataclasses.replace(shard, frames=frames), *index.files[1:]))


def test_frames_under_each_others_names_are_found(tmp_path: Path) -> None:
    one = save(tmp_path / "one", shards=1)
    with pytest.raises(BadArtifact, match="safetensors header lists 'adam_m/t0' .* where the state has 'adam_v/t0'"):
        check_tensors(one.shards, one.document, reordered(one.index))


@pytest.mark.parametrize("change", ["another shape", "another name", "a tensor more", "bytes after it", "no header"])
def test_a_header_that_says_something_else_is_found(tmp_path: Path, change: str) -> None:
    saved = save(tmp_path / "state", shards=1)
    shard = saved.index.files[0]
    path = saved.folder / shard.path
    header = load_header(path, shard.frames[0])
    text = {
        "another shape": lambda: header.replace(b"[300,1000]", b"[1000,300]", 1),
        "another name": lambda: header.replace(b"adam_m/t1", b"adam_m/tt", 1),
        "a tensor more": lambda: header.replace(
            b'"adam_m/t2":', b'"adam_m/t9":{"dtype":"F32","shape":[0],"data_offsets":[1200256,1200256]},"adam_m/t2":'
        ),
        "bytes after it": lambda: header + b" " * 8,
        "no header": lambda: b"\0" * len(header),
    }[change]()
    raw = text if change in ("bytes after it", "no header") else (len(text) - 8).to_bytes(8, "little") + text[8:]
    frame = compress(raw)
    body = path.read_bytes()[shard.frames[0].length :]
    moved = len(frame) - shard.frames[0].length
    frames = [dataclasses.replace(shard.frames[0], length=len(frame), raw_length=len(raw))]
    frames += [dataclasses.replace(f, offset=f.offset + moved) for f in shard.frames[1:]]
    path.write_bytes(frame + body)
    size = len(frame) + len(body)
    index = StateIndex((dataclasses.replace(shard, size=size, frames=tuple(frames)),))
    with pytest.raises(BadArtifact, match="safetensors"):
        check_tensors(saved.shards, saved.document, index)


def load_header(path: Path, frame: FrameEntry) -> bytes:
    """The raw bytes of a shard's first frame."""
    from auditkit.formats.zstd import decompress

    return decompress(path.read_bytes()[: frame.length], size=frame.raw_length, what="header")


def test_an_index_that_lacks_a_tensor_is_refused_before_anything_is_read(plain: Saved) -> None:
    entries = dict(plain.arrays)
    entries["param", "extra"] = np.zeros((2,), np.float32)
    with pytest.raises(BadArtifact, match="param/extra"):
        check_tensors({}, states.document_of(entries), plain.index)


@pytest.mark.parametrize("key", [("param", "t0"), ("adam_m", "t3"), ("adam_v", "t2")])
def test_one_tensor_by_one_range(plain: Saved, shop: Shop, key: tuple[str, str]) -> None:
    files = {f"states/00000003/{name}": path.read_bytes() for name, path in plain.shards.items()}
    with serve(honest, {**files, "run.json": b"{}"}) as server:
        for _ in range(2):
            found = fetch_tensor(shop.store(server.url), "states/00000003", plain.document, plain.index, key)
            assert same_bits({key: found}, {key: plain.arrays[key]})
    (asked,) = server.asked
    length = next(f.length for s in plain.index.files for f in s.frames if (f.role, f.name) == key)
    assert asked.range and asked.sent == length


def test_one_tensor_from_a_mirror_when_the_first_lies(plain: Saved, shop: Shop) -> None:
    files = {f"states/00000003/{name}": path.read_bytes() for name, path in plain.shards.items()}
    other = {name: bytes(len(data)) for name, data in files.items()}
    with serve(honest, {**other, "run.json": b"{}"}) as bad, serve(honest, files) as good:
        store = shop.store(bad.url, good.url)
        found = fetch_tensor(store, "states/00000003", plain.document, plain.index, ("param", "t0"))
    assert same_bits({("param", "t0"): found}, {("param", "t0"): plain.arrays["param", "t0"]})
    assert "zstd" in shop.story.notes[0]


MEASURE = """
import sys
from pathlib import Path
from auditkit.formats.state import StateDocument, StateIndex
from auditkit.store.unpack import check_tensors
from tests.peak_memory import peak_bytes
folder = Path(sys.argv[1])
document = StateDocument.parse((folder / "state.json").read_bytes())
index = StateIndex.parse((folder / "index.json").read_bytes())
before = peak_bytes()
check_tensors({s.path: folder / s.path for s in index.files}, document, index)
print((peak_bytes() - before) // 1024)
"""


@pytest.mark.optional("Windows has no getrusage; the code is the same everywhere")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no getrusage")
def test_memory_is_a_few_buffers_whatever_the_size_of_a_tensor(tmp_path: Path) -> None:
    arrays = {key: array for key, array in states.random_arrays([(8_000_000,)]).items() if key[0] != "adam_m"}
    index = states.write_state(tmp_path, arrays, shards=1)
    (tmp_path / "state.json").write_bytes(states.document_of(arrays).encode())
    (tmp_path / "index.json").write_bytes(index.encode())
    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], cwd=ROOT, capture_output=True, check=True)
    assert int(done.stdout) < 24_000  # KiB, for two tensors of 32 MB each
