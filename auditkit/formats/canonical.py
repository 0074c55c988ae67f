"""Canonical JSON (RFC 8785) without floats and null: the one text form of every document that is hashed.

A reader that accepts what it would not write lets two programs see two documents behind one digest, so `loads` refuses
duplicate keys, other spacing, other key order, other escapes and trailing bytes, and says which it found.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import rfc8785

from auditkit.errors import BadArtifact
from auditkit.formats.limits import LIMITS

MAX_INT = (1 << 53) - 1  # beyond it, a reader that holds numbers in binary64 would see another number

Value = Any  # dict with str keys, list, tuple, str, bool, int


def dumps(value: Value, *, what: str = "document") -> bytes:
    """RFC 8785 bytes of dict, list, tuple, str, bool and int within +-(2^53-1); BadArtifact for anything else."""
    _check(value, what, 0)
    # In ASCII Python's own JSON is the same text, ten times as fast: code points sort as UTF-16 does, and escaped are
    # only quotes, backslashes and control characters, and alike. A step writes three such documents.
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if text.isascii():
        return text.encode("ascii")
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise BadArtifact(f"{what}: text with a lone surrogate has no canonical form") from error


def loads(data: bytes, *, what: str, limit: int) -> Value:
    """The value of canonical JSON of at most `limit` bytes; BadArtifact naming `what` unless it re-encodes alike."""
    value = loads_relaxed(data, what=what, limit=limit)
    expected = dumps(value, what=what)
    if expected != data:
        raise BadArtifact(f"{what}: not canonical JSON (RFC 8785): {_difference(bytes(data), expected)}")
    return value


def loads_relaxed(data: bytes, *, what: str, limit: int) -> Value:
    """As `loads`, but spacing, key order and escapes are free: for files that people or other programs write."""
    if len(data) > limit:
        raise BadArtifact(f"{what}: {len(data)} bytes, at most {limit} are allowed")
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadArtifact(f"{what}: not UTF-8 at byte {error.start}") from error
    if text.startswith("\ufeff"):
        raise BadArtifact(f"{what}: begins with a byte order mark")
    _check_count(text, what)
    value = _parse(text, what)
    _check(value, what, 0)
    if "\\u" in text:  # an escape may spell half a surrogate pair, which has no UTF-8
        dumps(value, what=what)
    return value


class _Refused(ValueError):
    """Raised inside the JSON reader's hooks; never leaves this module."""


def _check_count(text: str, what: str) -> None:
    """Bound the memory of the parsed value before it is built; commas and brackets inside of texts count as well."""
    values = text.count(",") + text.count("[") + text.count("{")
    if values > LIMITS.json_values:
        raise BadArtifact(f"{what}: {values} values, at most {LIMITS.json_values} are allowed")


def _parse(text: str, what: str) -> Value:
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_float
        )
    except _Refused as error:
        raise BadArtifact(f"{what}: {error}") from None
    except RecursionError:
        raise BadArtifact(f"{what}: nested deeper than {LIMITS.json_depth_levels} levels") from None
    except json.JSONDecodeError as error:
        raise BadArtifact(f"{what}: not JSON at character {error.pos}: {error.msg.lower()}") from None


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(f"duplicate key {shown(key)}")
            seen.add(key)
    return found


def _integer(text: str) -> int:
    if text == "-0" or len(text) > 17:  # 2^53 has 16 digits; longer texts are not even converted
        raise _Refused(f"integer {text[:20]} is out of range or minus zero")
    return int(text)


def _float(text: str) -> NoReturn:
    raise _Refused(f"number {text[:20]} is not an integer (floats are written as bit patterns)")


def _check(value: Value, what: str, depth: int) -> None:
    """Refuse every type, range and depth outside the subset; exact types, so that a bool is not an int."""
    kind = type(value)
    if kind is str or kind is bool:
        return
    if kind is int:
        if not -MAX_INT <= value <= MAX_INT:
            raise BadArtifact(f"{what}: integer {value} is outside +-(2^53-1)")
    elif depth >= LIMITS.json_depth_levels:
        raise BadArtifact(f"{what}: nested deeper than {LIMITS.json_depth_levels} levels")
    elif kind is list or kind is tuple:
        for item in value:
            _check(item, what, depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise BadArtifact(f"{what}: a key is not text")
            _check(item, what, depth + 1)
    else:
        raise BadArtifact(f"{what}: {'null' if value is None else kind.__name__} is not allowed")


def _difference(found: bytes, expected: bytes) -> str:
    if b"\r" in found:
        return "it holds a carriage return (line ends changed on checkout?)"
    if found.rstrip(b" \t\n") == expected:
        return f"trailing bytes after byte {len(expected)}"
    shorter = min(len(found), len(expected))
    at = next((i for i in range(shorter) if found[i] != expected[i]), shorter)
    return f"spacing, key order or escapes differ at byte {at}"


def shown(text: str) -> str:
    """`text` quoted for a message: ASCII only, at most 80 characters, so that no file can forge terminal output."""
    quoted = json.dumps(text)
    return quoted if len(quoted) <= 80 else quoted[:76] + '..."'


def words(error: object, limit: int = 200) -> str:
    """What another program says of bytes that it refuses, for a message: ASCII, one line, `limit` characters at most.

    It may repeat those bytes, so it is no more to be trusted than they are.
    """
    return json.dumps(str(error)[:limit])[1:-1].replace('\\"', '"')[:limit]
