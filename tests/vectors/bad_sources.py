"""Data with declared sources with one thing wrong each, in the manner of bad_documents.py and bad_bytes.py."""

from __future__ import annotations

import struct

from auditkit.formats import canonical
from auditkit.formats.limits import LIMITS
from tests.formats import sources
from tests.vectors import bad_bytes
from tests.vectors.bad_documents import DROP, NO_DIGEST, UPPER, Case

UNSAFE = "(letters, digits and ._+- only, no dot at either end)"

RUN_SOURCES: list[Case] = [
    ("version of one corpus", "format", "auditkit/run/v1",
     'run.format: "auditkit/run/v1", but its data are those of "auditkit/run/v2"'),
    ("newer version", "format", "auditkit/run/v4",
     'run.format: "auditkit/run/v4" is newer than "auditkit/run/v3", which this verifier knows'),
    ("no sources", "data/sources", [], "run.data.sources: 0 items, 1 to 256 are allowed"),
    ("sources without an order", "data/order", DROP, 'run.data: key "order" is missing'),
    ("another order", "data/order", "sorted", 'run.data.order: "sorted" is not "feistel"'),
    ("an order without sources", "data/sources", DROP, 'run.data.tokenizer: unknown key "library"'),
    ("unknown key of a source", "data/sources/0/url", "x", 'run.data.sources[0]: unknown key "url"'),
    ("no licence", "data/sources/0/license", DROP, 'run.data.sources[0]: key "license" is missing'),
    ("empty title", "data/sources/1/title", "", "run.data.sources[1].title: 0 characters, 1 to 200 are allowed"),
    ("name with a slash", "data/sources/0/name", "a/b", f'run.data.sources[0].name: unsafe name "a/b" {UNSAFE}'),
    ("same name but for case", "data/sources/1/name", "WEB",
     'run.data.sources: "WEB" and "web" are one name where case is ignored'),
    ("weight of zero", "data/sources/0/weight", 0, "run.data.sources[0].weight: 0 is outside 1 to 65536"),
    ("weight is true", "data/sources/0/weight", True, "run.data.sources[0].weight: not an integer"),
    ("weights too large", "data/sources/0/weight", 65536,
     "run.data.sources: weights sum to 65537, at most 65536 are allowed"),
    ("negative epochs", "data/sources/0/epochs", -1, "run.data.sources[0].epochs: -1 is outside 0 to 1099511627776"),
    ("tokens of another corpus", "data/sources/0/tokens", 49, "run.data.windows: 8, but the sources have 9"),
    ("source without a window", "data/sources/0/tokens", 8,
     'run.data.sources: "web": 8 tokens, a window needs 9'),
    ("a window too many", "data/windows", 9, "run.data.windows: 9, but the sources have 8"),
    ("no library", "data/tokenizer/library", DROP, 'run.data.tokenizer: key "library" is missing'),
    ("sample beyond the limit", "data/tokenizer/one_in", 1048577,
     "run.data.tokenizer.one_in: 1048577 is outside 0 to 1048576"),
    ("text is no path", "data/corpus/text", "../corpus", f'run.data.corpus.text: unsafe name ".." {UNSAFE}'),
]  # fmt: skip

RUN_SOURCES_WINDOWS: list[Case] = [
    ("no ids", "data/ids", DROP, 'run.data: key "ids" is missing'),
    ("ids of another corpus", "data/ids/count", 79, "run.data.ids.count: 79, but the sources have 78 tokens"),
    ("ids beyond the limit", "data/sources/0/tokens", 1 << 30, "run.data.windows: 8, but the sources have 134217730"),
]

SHARDS: list[Case] = [
    ("one corpus", "format", "auditkit/corpus/v1", 'corpus.format: "auditkit/corpus/v1" is not "auditkit/corpus/v2"'),
    ("newer version", "format", "auditkit/corpus/v3",
     'corpus.format: "auditkit/corpus/v3" is newer than "auditkit/corpus/v2", which this verifier knows'),
    ("no sources", "sources", [], "corpus.sources: 0 items, 1 to 256 are allowed"),
    ("no shards", "sources/0/shards", [], "corpus.sources[0].shards: 0 items, 1 to 65536 are allowed"),
    ("unknown key", "sources/0/license", "MIT", 'corpus.sources[0]: unknown key "license"'),
    ("unknown key of a shard", "sources/0/shards/0/path", "x", 'corpus.sources[0].shards[0]: unknown key "path"'),
    ("unsafe name", "sources/0/name", "..", f'corpus.sources[0].name: unsafe name ".." {UNSAFE}'),
    ("digest", "sources/0/shards/0/digest", UPPER, f"corpus.sources[0].shards[0].digest: {NO_DIGEST}"),
    ("no blocks", "sources/0/shards/0/blocks", 0,
     "corpus.sources[0].shards[0].blocks: 0 is outside 1 to 65536 blocks"),
    ("no tokens", "sources/0/shards/1/tokens", 0,
     f"corpus.sources[0].shards[1].tokens: 0 is outside 1 to {LIMITS.file_bytes} tokens"),
]  # fmt: skip

_INDEX = sources.BLOCKS.encode()
BLOCK_INDEX: list[bad_bytes.Case] = [
    ("empty", b"", "block index: does not begin with AUDITKIT-BLK-v1"),
    ("no blocks", _INDEX[:16], "block index: blocks: 0 is outside 1 to 65536 blocks"),
    ("line end changed", _INDEX.replace(b"v1\n", b"v1\r\n", 1), "block index: does not begin with AUDITKIT-BLK-v1"),
    ("truncated", _INDEX[:-1], "block index: 55 bytes after the last whole row (truncated?)"),
    ("doubled", _INDEX + _INDEX[16:], "block index: block 2 starts at byte 0, not at 130"),
    ("gap", _INDEX[:72] + b"\x5b" + _INDEX[73:], "block index: block 1 starts at byte 91, not at 90"),
    ("empty frame", _INDEX[:24] + b"\0" * 4 + _INDEX[28:],
     "block index: length: 0 is outside 1 to 4294967295 bytes"),
    ("block beyond the limit", _INDEX[:28] + b"\xff" * 4 + _INDEX[32:],
     f"block index: raw length: 4294967295 is outside 1 to {LIMITS.block_bytes} bytes"),
    ("no documents", _INDEX[:32] + b"\0" * 4 + _INDEX[36:],
     "block index: documents: 0 is outside 1 to 65536 documents"),
    ("no tokens", _INDEX[:36] + b"\0" * 4 + _INDEX[40:], "block index: tokens: 0 is outside 1 to 4294967295 tokens"),
]  # fmt: skip


def _block(table: bytes, text: bytes = b"") -> bytes:
    return struct.pack("<I", len(table)) + table + text


def _listed(documents: object, text: bytes = b"", **more: object) -> bytes:
    return _block(canonical.dumps({"documents": documents, "format": "auditkit/block/v1", **more}), text)


def _one(**changed: object) -> bytes:
    return _listed([{"name": "a", "size": 2, "tokens": 3} | changed], b"ab")


BLOCK_GOOD: list[tuple[str, bytes, dict[str, object]]] = [
    ("three documents", sources.RAW, {}),
    ("one empty document", _listed([{"name": "a", "size": 0, "tokens": 1}]), {}),
    ("two of one name", _listed([{"name": "a", "size": 0, "tokens": 1}] * 2), {}),
]

_NAME = "block: document name"
BLOCK: list[bad_bytes.Case] = [
    ("empty", b"", f"block: 0 bytes, 4 to {LIMITS.block_bytes} are allowed"),
    ("table beyond the end", b"\xff\xff\xff\xff{}", "block: its table ends at byte 4294967299 of 6"),
    ("table with a space", _block(b'{"documents": [],"format":"auditkit/block/v1"}'),
     "block: not canonical JSON (RFC 8785): spacing, key order or escapes differ at byte 13"),
    ("no table", _block(b""), "block: not JSON at character 0: ..."),
    ("no documents", _listed([]), "block.documents: 0 items, 1 to 65536 are allowed"),
    ("unknown key", _listed([{"name": "a", "size": 0, "tokens": 1}], note="x"), 'block: unknown key "note"'),
    ("unknown key of a document", _one(language="en"), 'block.documents[0]: unknown key "language"'),
    ("less text", _listed([{"name": "a", "size": 2, "tokens": 3}], b"a"),
     "block: 1 bytes of text, its documents have 2"),
    ("more text", _listed([{"name": "a", "size": 2, "tokens": 3}], b"abc"),
     "block: 3 bytes of text, its documents have 2"),
    ("negative size", _one(size=-1), f'block: document "a": size: -1 is outside 0 to {LIMITS.block_bytes} bytes'),
    ("no tokens", _one(tokens=0), 'block: document "a": tokens: 0 is outside 1 to 3 tokens'),
    ("more tokens than bytes", _one(tokens=4), 'block: document "a": tokens: 4 is outside 1 to 3 tokens'),
    ("tokens are true", _one(tokens=True), 'block: document "a": tokens: not an integer'),
    ("empty name", _one(name=""), f"{_NAME}: 0 characters, 1 to 200 are allowed"),
    ("escape sequence in a name", _one(name="\x1b[2J"), f'{_NAME}: "\\u001b[2J" holds an unprintable character'),
    ("newer version", _block(b'{"documents":[],"format":"auditkit/block/v2"}'),
     'block.format: "auditkit/block/v2" is newer than "auditkit/block/v1", which this verifier knows'),
]  # fmt: skip
