"""JSON lines: documents by line, whatever pieces the file comes in; every bad line is named with its byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from trainer.data.document import Limit
from trainer.data.lines import documents

LIMIT = Limit(1000)


def read(data: bytes, size: int = 7, key: str = "text", limit: Limit = LIMIT) -> list[tuple[str, bytes]]:
    """The documents of a file that comes in pieces of `size` bytes."""
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    return [(document.name, document.data) for document in documents(pieces, "a.jsonl", key, limit)]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(st.lists(texts, max_size=8), st.integers(1, 60), st.booleans(), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_every_text_comes_back(found: list[str], size: int, plain: bool, end: bytes, ended: bool) -> None:
    rows = [json.dumps({"id": 1, "text": text, "n": 1e5}, ensure_ascii=plain).encode() for text in found]
    data = end.join(rows) + (end if ended and rows else b"")
    assert read(data, size) == [(f"a.jsonl:{n}", text.encode()) for n, text in enumerate(found, start=1)]


def test_an_empty_file_has_no_documents_and_an_empty_text_is_one() -> None:
    assert read(b"") == []
    assert read(b'{"text":""}') == [("a.jsonl:1", b"")]


def test_escapes_give_the_characters_they_stand_for() -> None:
    assert read(rb'{"text":"\u00e9\ud83d\ude00\n\t\"\\/"}') == [("a.jsonl:1", 'é😀\n\t"\\/'.encode())]


def test_the_text_may_be_under_another_key_and_others_do_not_matter() -> None:
    row = b'{"a":{"text":[1,{"text":null}]},"body":"x","n":' + b"9" * 5000 + b',"m":{"k":1,"k":2}}'
    assert read(row, key="body") == [("a.jsonl:1", b"x")]


GOOD = b'{"text":"x"}\n'  # 13 bytes


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "the line is empty"),
        (b"  \r", "the line is empty"),
        (b"{", "not JSON at byte 27: "),
        (b'{"text":"x"', "not JSON at byte 37: "),
        (b'{"text":"x"} {}', "not JSON at byte 39: extra data"),
        (b'{"text":"x",}', "not JSON at byte 3"),
        ('{"é":1,"text":x}'.encode(), "not JSON at byte 41: "),
        (b"\xef\xbb\xbf" + GOOD[:-1], "not JSON at byte 26: "),
        (b'{"text":"a\x00b"}', "not JSON at byte 36: "),
        (b'{"text":"a\tb"}', "not JSON at byte 36: "),
        (b'{"text":"\xff"}', r"not UTF-8 at byte 35 \(0xff"),
        (b'{"text":"\xed\xa0\x80"}', r"not UTF-8 at byte 35 \(0xed"),
        (b'{"text":"\xc3', r"not UTF-8 at byte 35 \(0xc3: unexpected end"),
        (b'{"text":"ab\\ud800c"}', r"a lone surrogate, U\+D800, is character 2 of the text"),
        (b'{"text":"\\udc00"}', r"a lone surrogate, U\+DC00, is character 0 of the text"),
        (b'{"text":"ab\\u0000"}', r"U\+0000 is character 2 of the text"),
        (b'{"Text":"x"}', "there is no key 'text'"),
        (b'{"text":null}', "the value of 'text' is not a text"),
        (b'{"text":5}', "the value of 'text' is not a text"),
        (b'{"text":["x"]}', "the value of 'text' is not a text"),
        (b'{"text":"x","text":"y"}', "key 'text' occurs twice"),
        (b'{"text":"x","n":NaN}', "NaN is no number"),
        (b'"x"', "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text":"' + b"x" * 1001 + b'"}', "a document of 1001 bytes or more, at most 1000 are allowed"),
    ],
)
@pytest.mark.parametrize("size", [5, 1 << 20])
def test_a_bad_line_is_named_with_its_byte(line: bytes, words: str, size: int) -> None:
    """Case 69: two good lines before it, so that line 3 begins at byte 26."""
    with pytest.raises(BadArtifact, match=rf"^a\.jsonl, line 3 \(byte 26\): .*{words}") as caught:
        read(GOOD * 2 + line + b"\n" + GOOD, size)
    assert caught.value.hint
    assert caught.value.message.isprintable()


def test_a_line_without_an_end_is_not_read_into_memory() -> None:
    """6000 bytes of escapes and 1 MiB of other keys are the most that a line of a text of 1000 bytes may have."""
    taken = 0

    def pieces() -> object:
        nonlocal taken
        while taken < 100:
            taken += 1
            yield b"x" * 65536

    with pytest.raises(BadArtifact, match=r"line 1 \(byte 0\): a line of more than 1054576 bytes"):
        list(documents(pieces(), "a.jsonl", "text", LIMIT))  # type: ignore[arg-type]
    assert taken == 17
