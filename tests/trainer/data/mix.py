"""Small sources of every kind of file, and their preparation by the command."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import zstandard

from auditkit.formats.blocks import BlockIndex, decode_block
from auditkit.formats.shards import ShardedCorpus, shard_paths
from trainer import cli

WORDS = "the of and to in a is that it was for on are with as his they be at one have this from or had by".split()
VOCAB, CONTEXT = 300, 16


def texts(count: int, seed: int) -> list[str]:
    """Short texts, some empty, some with letters beyond ASCII."""
    chooser = random.Random(seed)
    made = [" ".join(chooser.choices(WORDS, k=number % 7 * 5)) for number in range(count)]
    made[3] += " naïve café 日本語 <|endoftext|>\r\n"
    return made


def write(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Sources `web` and `books` in a folder; name and text of each document of each, in order."""
    web, books = folder / "web", folder / "books"
    (web / "deep").mkdir(parents=True)
    books.mkdir()
    first, second, third, fourth = (texts(20, seed) for seed in range(4))
    (web / "a.jsonl").write_bytes(lines(first, "text"))
    (web / "deep/b.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines(second, "text")))
    pyarrow.parquet.write_table(pyarrow.table({"text": third}), books / "c.parquet", row_group_size=7)
    (books / "d.txt").write_bytes(" ".join(fourth).encode())
    return {
        "web": named("a.jsonl", first) + named("deep/b.jsonl.zst", second),
        "books": [*named("c.parquet", third), ("d.txt", " ".join(fourth))],
    }


def lines(found: list[str], key: str) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps({"n": n, key: text}).encode() + b"\n" for n, text in enumerate(found))


def named(file: str, found: list[str]) -> list[tuple[str, str]]:
    """Documents called by their rows."""
    return [(f"{file}:{row}", text) for row, text in enumerate(found, start=1)]


def arguments(folder: Path, work: Path, *more: str, weights: tuple[str, str] = (":3", ":1")) -> list[str]:
    """The command that prepares both sources."""
    sources = [f"--source=web={folder / 'web'}{weights[0]}", f"--source=books={folder / 'books'}{weights[1]}"]
    sizes = [f"--vocab-size={VOCAB}", f"--context-length={CONTEXT}", "--seed=5"]
    return ["prepare", *sources, str(work), *sizes, "--title=Two sources", "--license=CC0-1.0", *more]


def prepare(folder: Path, work: Path, *more: str, weights: tuple[str, str] = (":3", ":1")) -> int:
    """Prepare both sources in this process."""
    return cli.main(arguments(folder, work, *more, weights=weights))


def files(work: Path) -> dict[str, bytes]:
    """Everything in a work folder but its lock."""
    return {
        path.relative_to(work).as_posix(): path.read_bytes()
        for path in sorted(work.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def documents(work: Path) -> dict[str, list[tuple[str, str, int]]]:
    """Name, text and number of ids of every document of each source, as the corpus of a folder has them."""
    corpus = ShardedCorpus.parse((work / "corpus.json").read_bytes())
    found: dict[str, list[tuple[str, str, int]]] = {}
    for source in corpus.sources:
        found[source.name] = []
        for number, shard in enumerate(source.shards):
            text, beside = (work / path for path in shard_paths("corpus", source.name, number))
            index = BlockIndex.parse(beside.read_bytes())
            assert index.shard() == shard
            data = text.read_bytes()
            assert len(data) == index.text_bytes
            for row in index.rows:
                block = decode_block(data[row.offset : row.offset + row.length], row)
                found[source.name] += [(d.name, text.decode(), d.tokens) for d, text in block.texts()]
    return found


def ids(work: Path, dtype: str = "<u2") -> np.ndarray:
    """All ids of a folder."""
    return np.fromfile(work / "ids.bin", dtype)
