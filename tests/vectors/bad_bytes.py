"""Bytes that are wrong below the level of values, and the error that each must cause; make_formats.py writes them out.

A case is (name, bytes, error). An error that ends in "..." is the beginning of the message: the rest comes from a
library.
"""

from __future__ import annotations

import json
from typing import Any

from tests.formats import samples

Case = tuple[str, bytes, str]

DIFFER = "document: not canonical JSON (RFC 8785): spacing, key order or escapes differ at byte"

CANONICAL: list[Case] = [
    ("empty", b"", "document: not JSON at character 0: ..."),
    ("two values", b"{}{}", "document: not JSON at character 2: ..."),
    ("trailing comma", b'{"a":1,}', "document: not JSON at character ..."),
    ("single quotes", b"{'a':1}", "document: not JSON at character 1: ..."),
    ("control character in a text", b'"a\nb"', "document: not JSON at character 2: ..."),
    ("byte order mark", b"\xef\xbb\xbf{}", "document: begins with a byte order mark"),
    ("UTF-16", "{}".encode("utf-16-be"), "document: not JSON at character 0: ..."),
    ("not UTF-8", b'{"a":"\xff"}', "document: not UTF-8 at byte 6"),
    ("encoded surrogate", b'{"a":"\xed\xa0\x80"}', "document: not UTF-8 at byte 6"),
    ("line ends of Windows", b'{\r\n"a":1}',
     "document: not canonical JSON (RFC 8785): it holds a carriage return (line ends changed on checkout?)"),
    ("final line end", b'{"a":1}\n', "document: not canonical JSON (RFC 8785): trailing bytes after byte 7"),
    ("space", b'{"a": 1}', f"{DIFFER} 5"),
    ("key order", b'{"b":1,"a":2}', f"{DIFFER} 2"),
    ("key order is that of UTF-16", '{"\uff61":1,"\U0001f600":2}'.encode(), f"{DIFFER} 2"),
    ("escaped slash", b'"\\/"', f"{DIFFER} 1"),
    ("escaped letter", b'"\\u00e9"', f"{DIFFER} 1"),
    ("long escape", b'"\\u000a"', f"{DIFFER} 2"),
    ("half a surrogate pair", b'"\\ud800"', "document: text with a lone surrogate has no canonical form"),
    ("half a surrogate pair as a key", b'{"\\ud800":1}', "document: text with a lone surrogate has no canonical form"),
    ("duplicate key", b'{"step":7,"step":8}', 'document: duplicate key "step"'),
    ("nested duplicate key", b'[{"a":{"b":1,"b":1}}]', 'document: duplicate key "b"'),
    ("escaped duplicate key", b'{"a":1,"\\u0061":2}', 'document: duplicate key "a"'),
    ("null", b'{"a":null}', "document: null is not allowed"),
    ("float", b"[1.0]", "document: number 1.0 is not an integer (floats are written as bit patterns)"),
    ("exponent", b"[1e5]", "document: number 1e5 is not an integer (floats are written as bit patterns)"),
    ("not a number", b"[NaN]", "document: number NaN is not an integer (floats are written as bit patterns)"),
    ("infinity", b"[-Infinity]", "document: number -Infinity is not an integer (floats are written as bit patterns)"),
    ("minus zero", b"[-0]", "document: integer -0 is out of range or minus zero"),
    ("2^53", b"[9007199254740992]", "document: integer 9007199254740992 is outside +-(2^53-1)"),
    ("5000 digits", b"[" + b"9" * 5000 + b"]", "document: integer 99999999999999999999 is out of range or minus zero"),
    ("17 levels", b"[" * 17 + b"]" * 17, "document: nested deeper than 16 levels"),
    ("2000 levels", b"[" * 2000 + b"]" * 2000, "document: nested deeper than 16 levels"),
]  # fmt: skip

NO_F32 = 'number: not a binary32 bit pattern ("f32:" and 8 lower-case hexadecimal digits)'
NO_F64 = 'number: not a binary64 bit pattern ("f64:" and 16 lower-case hexadecimal digits)'
F32: list[Case] = [
    ("empty", b"", NO_F32),
    ("no prefix", b"3f800000", NO_F32),
    ("upper case", b"f32:3F800000", NO_F32),
    ("short", b"f32:3f80000", NO_F32),
    ("line end", b"f32:3f800000\n", NO_F32),
    ("other digits", "f32:3f80000\u0660".encode(), NO_F32),
    ("infinity", b"f32:ff800000", "number: f32:ff800000 is not finite"),
    ("not a number", b"f32:7fc00000", "number: f32:7fc00000 is not finite"),
]
F64: list[Case] = [
    ("binary32", b"f32:3f800000", NO_F64),
    ("long", b"f64:3ff00000000000000", NO_F64),
    ("infinity", b"f64:7ff0000000000000", "number: f64:7ff0000000000000 is not finite"),
]

NO_DIGEST = "digest: not a digest (64 lower-case hexadecimal digits)"
DIGEST: list[Case] = [
    ("empty", b"", NO_DIGEST),
    ("upper case", b"A" * 64, NO_DIGEST),
    ("63 digits", b"a" * 63, NO_DIGEST),
    ("65 digits", b"a" * 65, NO_DIGEST),
    ("line end", b"a" * 64 + b"\n", NO_DIGEST),
    ("trailing space", b"a" * 63 + b" ", NO_DIGEST),
    ("prefix", b"blake3:" + b"a" * 57, NO_DIGEST),
]


def unsafe(name: str) -> str:
    """The message for a name outside the safe set."""
    return f"path: unsafe name {json.dumps(name)} (letters, digits and ._+- only, no dot at either end)"


PATH: list[Case] = [
    ("empty", b"", unsafe("")),
    ("parent", b"a/../b", unsafe("..")),
    ("here", b"./a", unsafe(".")),
    ("hidden", b".git/config", unsafe(".git")),
    ("final dot", b"a./b", unsafe("a.")),
    ("double slash", b"a//b", unsafe("")),
    ("final slash", b"a/", unsafe("")),
    ("absolute", b"/a", 'path: path "/a" is absolute'),
    ("drive letter", b"C:/a", 'path: path "C:/a" is absolute'),
    ("alternate stream", b"ab:c", unsafe("ab:c")),
    ("backslash", b"a\\b", """path: path "a\\\\b" holds a backslash (paths are joined by '/')"""),
    ("zero byte", b"a\x00b", unsafe("a\x00b")),
    ("space", b"a b", unsafe("a b")),
    ("line end", b"a\n", unsafe("a\n")),
    ("leading dash", b"-rf", unsafe("-rf")),
    ("home", b"~/a", unsafe("~")),
    ("percent escape", b"%2e%2e/a", unsafe("%2e%2e")),
    ("composed letter", "caf\u00e9".encode(), unsafe("caf\u00e9")),
    ("decomposed letter", "cafe\u0301".encode(), unsafe("cafe\u0301")),
    ("device", b"a/con", 'path: name "con" is reserved on Windows'),
    ("device with an extension", b"Aux.tar.gz", 'path: name "Aux.tar.gz" is reserved on Windows'),
    ("serial port", b"COM1", 'path: name "COM1" is reserved on Windows'),
    ("long name", b"a" * 101, "path: name of 101 characters, at most 100 are allowed"),
    ("long path", b"a/" * 100 + b"a", "path: path of 201 characters, at most 200 are allowed"),
]


def header(value: Any, data: bytes = b"") -> bytes:
    """A safetensors file with this JSON header (text, or a value to encode)."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode("utf-8")
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    """One entry of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


_T = 'safetensors: tensor "a"'
_LEFT = "(truncated, or bytes are left over)"
SAFETENSORS: list[Case] = [
    ("seven bytes", b"\x02" + b"\0" * 6, "safetensors: a file of 7 bytes has no header length"),
    ("length 2^64-1", b"\xff" * 8 + b"{}",
     "safetensors: header of 18446744073709551615 bytes, at most 100000000 are allowed"),
    ("length 90000000, body 2", (90_000_000).to_bytes(8, "little") + b"{}",
     "safetensors: header of 90000000 bytes in a file of 10"),
    ("length 0", b"\0" * 8, "safetensors: header of 0 bytes in a file of 8"),
    ("leading space", header(b" {}"), "safetensors: the header does not begin with {"),
    ("not an object", header(b"[]"), "safetensors: the header does not begin with {"),
    ("not UTF-8", header(b'{"\xff":1}'), "safetensors header: not UTF-8 at byte 2"),
    ("duplicate tensor", header(b'{"a":{},"a":{}}'), 'safetensors header: duplicate key "a"'),
    ("shape wraps to 0", header({"a": tensor(0, 0, [1 << 32, 1 << 32])}),
     f"{_T}: shape [4294967296, 4294967296] is larger than 17592186044416 bytes"),
    ("2^62 elements", header({"a": tensor(0, 0, [1 << 62])}),
     "safetensors header: integer 4611686018427387904 is out of range or minus zero"),
    ("negative dimension", header({"a": tensor(0, 0, [-1, 4])}),
     f"{_T}: shape holds something other than integers of 0 and more"),
    ("dimension 1.0", header({"a": tensor(0, 4, [1.0])}, b"\0" * 4),
     "safetensors header: number 1.0 is not an integer (floats are written as bit patterns)"),
    ("dimension true", header({"a": tensor(0, 4, [True])}, b"\0" * 4),
     f"{_T}: shape holds something other than integers of 0 and more"),
    ("shape is no list", header({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}, b"\0" * 4),
     f"{_T}.shape: not a list"),
    ("unknown dtype", header({"a": tensor(0, 1, [1], "F128")}, b"\0"),
     f'{_T}.dtype: "F128" is not "BF16" or "BOOL" or "F16" or "F32" or "F64" or "I16" or "I32" or "I64" or "I8"'
     ' or "U16" or "U32" or "U64" or "U8"'),
    ("unknown key", header({"a": {**tensor(0, 4, [1]), "strides": [1]}}, b"\0" * 4), f'{_T}: unknown key "strides"'),
    ("three offsets", header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, b"\0" * 4),
     f"{_T}.data_offsets: 3 items, 2 to 2 are allowed"),
    ("offsets backwards", header({"a": tensor(8, 0, [2])}, b"\0" * 8),
     f"{_T}: bytes 8 to 0, but F32 of shape [2] has 8 bytes"),
    ("negative offset", header({"a": tensor(-4, 0, [1])}, b"\0" * 4),
     f"{_T}: data_offsets are not two integers of 0 and more"),
    ("shape does not fit", header({"a": tensor(0, 8, [3])}, b"\0" * 8),
     f"{_T}: bytes 0 to 8, but F32 of shape [3] has 12 bytes"),
    ("overlap", header({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, b"\0" * 12),
     'safetensors: tensor "b" overlaps the one before: begins at 4, not 8'),
    ("same bytes", header({"a": tensor(0, 8, [2]), "b": tensor(0, 8, [2])}, b"\0" * 8),
     'safetensors: tensor "b" overlaps the one before: begins at 0, not 8'),
    ("hole", header({"a": tensor(0, 8, [2]), "b": tensor(12, 20, [2])}, b"\0" * 20),
     'safetensors: tensor "b" leaves a hole before it: begins at 12, not 8'),
    ("trailing byte", header({"a": tensor(0, 4, [1])}, b"\0" * 5), f"{_T} ends at byte 4 of 5 {_LEFT}"),
    ("byte cut", header({"a": tensor(0, 4, [1])}, b"\0" * 3), f"{_T} ends at byte 4 of 3 {_LEFT}"),
    ("bytes without a tensor", header({}, b"\0"), f"safetensors: the header ends at byte 0 of 1 {_LEFT}"),
    ("two metadata keys", header({"__metadata__": {"a": "b", "c": "d"}}),
     "safetensors: 2 metadata keys, at most one is allowed"),
    ("metadata number", header({"__metadata__": {"a": 1}}), "safetensors: metadata is not an object of texts"),
]  # fmt: skip

_RECORDS, _LEAVES, _STREAM = samples.RECORDS.encode(), samples.LEAVES.encode(), samples.STREAM.encode()
_INF = b"\x00\x00\x80\x7f"
RECORDS: list[Case] = [
    ("empty", b"", "records: does not begin with AUDITKIT-REC-v1"),
    ("other magic", _LEAVES, "records: does not begin with AUDITKIT-REC-v1"),
    ("the compact layout", samples.COMPACT.encode(), "records: does not begin with AUDITKIT-REC-v1"),
    ("line end changed", _RECORDS.replace(b"v1\n", b"v1\r\n", 1), "records: does not begin with AUDITKIT-REC-v1"),
    ("truncated", _RECORDS[:-1], "records: 139 bytes after the last whole row (truncated?)"),
    ("infinite loss", _RECORDS[:284] + _INF + _RECORDS[288:],
     "records: loss, norm or learning rate of step 1 is not finite"),
]  # fmt: skip
_COMPACT = samples.COMPACT.encode()  # rows of 68 + 2 * 40 bytes
COMPACT: list[Case] = [
    ("empty", b"", "records: does not begin with AUDITKIT-REC-v2"),
    ("the other layout", _RECORDS, "records: does not begin with AUDITKIT-REC-v2"),
    ("line end changed", _COMPACT.replace(b"v2\n", b"v2\r\n", 1), "records: does not begin with AUDITKIT-REC-v2"),
    ("truncated", _COMPACT[:-1], "records: 147 bytes after the last whole row (truncated?)"),
    ("one leaf short", _COMPACT[:-40], "records: 108 bytes after the last whole row (truncated?)"),
    ("infinite norm", _COMPACT[:228] + _INF + _COMPACT[232:], "records: norm of step 1 is not finite"),
]  # fmt: skip
LEAVES: list[Case] = [
    ("other magic", _RECORDS, "leaves: does not begin with AUDITKIT-LEA-v1"),
    ("half a step", _LEAVES[:-40], "leaves: 40 bytes after the last whole step (truncated?)"),
]
STREAM_INDEX: list[Case] = [
    ("other magic", _RECORDS, "stream index: does not begin with AUDITKIT-IDX-v1"),
    ("truncated", _STREAM[:-1], "stream index: 47 bytes after the last whole row (truncated?)"),
    ("doubled", _STREAM + _STREAM[16:], "stream index: frame of step 3 starts at byte 0, not at 120"),
    ("gap", _STREAM[:64] + b"\x29" + _STREAM[65:], "stream index: frame of step 1 starts at byte 41, not at 40"),
    ("offset wraps", _STREAM[:64] + b"\xff" * 8 + _STREAM[72:],
     "stream index: frame of step 1 starts at byte 18446744073709551615, not at 40"),
    ("empty frame", _STREAM[:28] + b"\0" * 4 + _STREAM[32:], "stream index: frame of step 0 is empty"),
]  # fmt: skip

# Frames by hand (RFC 8878), so that the vectors do not depend on a version of the library.
MAGIC = b"\x28\xb5\x2f\xfd"
RAW16 = (16 << 3 | 1).to_bytes(3, "little") + b"0123456789abcdef"  # last block, raw, 16 bytes
FRAME = MAGIC + b"\x20\x10" + RAW16  # single segment, content size 16
UNSIZED = MAGIC + b"\x00\x00" + RAW16  # window of 1 KiB, no content size
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
RLE = ((128 << 10) << 3 | 2).to_bytes(3, "little") + b"x"  # not the last: 128 KiB of one byte

ZSTD: list[Case] = [
    ("empty", b"", "frame: 0 bytes when decompressed, 16 are expected"),
    ("not zstd", b"0123456789abcdef", "frame: no zstd frame at byte 0"),
    ("garbage after it", FRAME + b"\0" * 16, "frame: no zstd frame at byte 25"),
    ("claims 2^40 bytes", bytes.fromhex("28b52ffde00000000000010000"), "frame: truncated zstd frame"),
    ("claims 2^40 bytes, then a block", bytes.fromhex("28b52ffde00000000000010000") + RAW16,
     "frame: zstd window of 1099511627776 bytes, at most 134217728 are allowed"),
    ("claims 17 bytes", MAGIC + b"\x20\x11" + RAW16, "frame: zstd frame claims 17 bytes, at most 16 can follow"),
    ("claims 15 bytes", MAGIC + b"\x20\x0f" + RAW16, "frame: not a zstd frame of at most 16 bytes: ..."),
    ("claims 0 bytes", MAGIC + b"\x20\x00" + RAW16, "frame: zstd frame claims 0 bytes, but has content"),
    ("window 2^28", MAGIC + b"\x00\x90" + RAW16,
     "frame: zstd window of 268435456 bytes, at most 134217728 are allowed"),
    ("doubled", FRAME + FRAME, "frame: zstd frame claims 16 bytes, at most 0 can follow"),
    ("one byte cut", FRAME[:-1], "frame: truncated zstd frame at byte 0"),
    ("checksum cut", MAGIC + b"\x24\x10" + RAW16 + b"\0" * 3, "frame: truncated zstd frame at byte 0"),
    ("wrong checksum", MAGIC + b"\x24\x10" + RAW16 + b"\0" * 4, "frame: not a zstd frame of at most 16 bytes: ..."),
    ("run-length bomb", MAGIC + b"\x00\x38" + RLE * 1000 + b"\x01\0\0",
     "frame: not a zstd frame of at most 16 bytes: ..."),
    ("skippable frame only", SKIPPABLE, "frame: 0 bytes when decompressed, 16 are expected"),
    ("skippable frame cut", FRAME + SKIPPABLE[:-1], "frame: truncated zstd frame at byte 25"),
    ("dictionary", MAGIC + b"\x21\x07\x10" + RAW16, "frame: needs zstd dictionary 7, none is used here"),
]  # fmt: skip
ZSTD_GOOD = [
    ("one frame", FRAME),
    ("no content size", UNSIZED),
    ("skippable frame before", SKIPPABLE + FRAME),
    ("skippable frame after", FRAME + SKIPPABLE),
    ("two frames", (MAGIC + b"\x20\x08" + (8 << 3 | 1).to_bytes(3, "little") + b"01234567") * 2),
]
