"""Changes that keep the structure of an input: a value of its JSON, a row, a length, a line, a part of another input.

A changed byte is nearly always refused at the first check; these reach the checks behind it.
"""

from __future__ import annotations

import base64
import binascii
import json
import random
from collections.abc import Callable
from typing import Any

Change = Callable[[random.Random, bytes], bytes]

_TEXTS = ("", "\x1b[2J", "a" * 300, "../x", "/etc/passwd", "C:\\x", "\u202e", "\ud800", "f32:7fc00000", "0" * 64, "NaN")
_NUMBERS = (0, -1, 1, 2, 1 << 31, 1 << 32, (1 << 53) - 1, 1 << 53, 1 << 63, 10**30, True, 0.5, -0.0)
_WORDS = (0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def mutated(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """An input changed once or a few times; its first byte chooses the parser and is left alone as a rule."""
    head, body = data[:1] or b"\0", data[1:]
    if rng.random() < 0.02:
        head = bytes([rng.randrange(256)])
    for _ in range(1 + min(4, int(rng.expovariate(1.2)))):
        changes = [*_BYTES, _splice(others)]
        if b"{" in body[:64] or b"[" in body[:8]:
            changes += [_json] * 8
        if b"\n" in body:
            changes += [_lines] * 4
        body = rng.choice(changes)(rng, body)
    return head + body


def _flip(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return bytes([rng.randrange(256)])
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _cut(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 2, 4, 8, 16, 32, 40, 48, 56, 140)) :]


def _double(rng: random.Random, data: bytes) -> bytes:
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 4, 8, 16, 32, 40, 48, 56, 140))
    return data[: at + size] + data[at : at + size] + data[at + size :]


def _word(rng: random.Random, data: bytes) -> bytes:
    """A number of 1 to 8 bytes in either order: a length, an offset, a count."""
    size = rng.choice((1, 2, 3, 4, 8))
    at = rng.choice((0, rng.randrange(len(data) + 1)))
    value = (rng.choice(_WORDS) + rng.choice((0, 0, 1, -1))) % (1 << 8 * size)
    return data[:at] + value.to_bytes(size, rng.choice(("little", "big"))) + data[at + size :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    some = rng.choice(
        (
            b'"',
            b"{",
            b"}",
            b"[",
            b",",
            b"\\u0000",
            b"\0",
            b"\r\n",
            b"\xef\xbb\xbf",
            b"\xff",
            b" ",
            b"\\ud800",
            b"=",
            b"-",
        )
    )
    return data[:at] + some + data[at:]


def _splice(others: list[bytes]) -> Change:
    def splice(rng: random.Random, data: bytes) -> bytes:
        other = rng.choice(others)[1:] if others else b""
        a, b = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
        return data[:a] + other[b : b + rng.choice((8, 64, len(other)))] + data[a:] * rng.randrange(2)

    return splice


def _lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[other])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] += rng.choice((b" ", b"\r", b"\t", b"x", b"=", b"\xe2\x80\xae"))
    return b"\n".join(lines)


def _json(rng: random.Random, data: bytes) -> bytes:
    """Another value somewhere in the JSON that begins at the first bracket, or in JSON that its base64 holds."""
    begin = min((at for at in (data.find(b"{"), data.find(b"[")) if at >= 0), default=0)
    try:
        value, end = json.JSONDecoder().raw_decode(data[begin:].decode("utf-8"))
    except (ValueError, RecursionError):
        return _flip(rng, data)
    text = _written(_changed(rng, value), rng)
    rest = data[begin:].decode("utf-8")[end:].encode("utf-8")
    head = data[:begin]
    if len(head) == 8 and rng.random() < 0.9:  # the length before a safetensors header
        head = len(text).to_bytes(8, "little")
    elif len(head) == 4 and rng.random() < 0.9:  # and before the table of a block
        head = len(text).to_bytes(4, "little")
    return head + text + rest


def _written(value: Any, rng: random.Random) -> bytes:
    spaced = rng.random() < 0.03
    text = json.dumps(value, ensure_ascii=spaced, sort_keys=not spaced, separators=None if spaced else (",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _changed(rng: random.Random, value: Any) -> Any:
    """The value with one change somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.08:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.14:
            return {**value, rng.choice((key + "x", "", "\u00e9", rng.choice(list(value)))): value[key]}
        return {**value, key: _changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at, kind = rng.randrange(len(value)), rng.random()
        if kind < 0.1:
            return value[:at] + value[at + 1 :]
        if kind < 0.2:
            return [*value[: at + 1], *value[at:]]
        if kind < 0.3:
            return rng.sample(value, len(value))
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, str) and rng.random() < 0.6:
        return _text(rng, value)
    if isinstance(value, int) and rng.random() < 0.6:
        return value + rng.choice((1, -1, 7, 1 << 20)) if rng.random() < 0.7 else rng.choice(_NUMBERS)
    return rng.choice([*_TEXTS, *_NUMBERS, None, [], {}, [[[[]]]], [0], {"": 0}, {"format": "x"}])


def _text(rng: random.Random, text: str) -> str:
    try:
        raw = base64.b64decode(text, validate=True)
        inner = _json(rng, raw) if raw[:1] == b"{" else b""
    except (ValueError, binascii.Error):
        inner = b""
    if inner:
        return base64.b64encode(inner).decode("ascii")
    kind = rng.randrange(5)
    if kind == 0 and text:
        at = rng.randrange(len(text))
        return text[:at] + rng.choice("0aAzZ9/._-+ \u00e9\u202e\x00=") + text[at + 1 :]
    if kind == 1:
        return text.upper()
    if kind == 2:
        return text[: rng.randrange(len(text) + 1)]
    if kind == 3:
        return text + rng.choice(("x", "/", ".", " ", "0", "\u0301"))
    return rng.choice(_TEXTS)


_BYTES: list[Change] = [_flip, _cut, _double, _word, _insert]
