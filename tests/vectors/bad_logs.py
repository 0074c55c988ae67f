"""The log's small formats: valid examples, and bytes that each name the error they cause; make_formats.py writes them.

A case is (name, bytes, error). An error that ends in "..." is the beginning of the message.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from auditkit.formats.merkle import EMPTY_ROOT, leaf_hash
from auditkit.formats.note import NoteKey, NoteSignature, SignedNote
from auditkit.formats.tiles import encode_entries
from auditkit.formats.tlog_proof import LogProof
from tests.formats import published_logs as published

Case = tuple[str, bytes, str]
Good = tuple[str, bytes, dict[str, Any]]

BUNDLE_WIDTH = 3  # entries in the sample bundle

DASH, TEXT, LINE = published.DASH, published.PETER_TEXT, published.PETER_LINE
LONG = "n" * 255
KEY = NoteKey("example.com/w\u00e9", 4, bytes(range(32)))
SIGNED = NoteSignature(LONG, b"\0\1\2\3", b"\xff")
PROOF = LogProof(5, (leaf_hash(b"a"), leaf_hash(b"b")), SignedNote.parse(published.SOFA_NOTE.encode()), b"extra data")


def changed(text: str, old: str, new: str) -> bytes:
    """A text with one part replaced, as bytes."""
    assert text.count(old) == 1
    return text.replace(old, new).encode()


def spelled(typed: bytes) -> bytes:
    """The vkey of a name and any bytes, with the hash that belongs to them."""
    hashed = hashlib.sha256(b"a\n" + typed).digest()[:4].hex()
    return f"a+{hashed}+{base64.b64encode(typed).decode()}".encode()


VKEY_GOOD: list[Good] = [
    ("Ed25519", published.PETER.encode(), {"hash": "c74f20a3"}),
    ("plus in the base64", published.SUMDB.encode(), {"hash": "033de0ae"}),
    ("cosignature", published.REMORA.encode(), {"hash": "da77ade7"}),
    ("not ASCII", KEY.text.encode(), {"hash": KEY.hash.hex()}),
    ("long name", NoteKey(LONG, 1, bytes(32)).text.encode(), {}),
]
NO_VKEY = "is not a vkey (NAME+8 lower-case hexadecimal digits+BASE64)"
VKEY: list[Case] = [
    ("empty", b"", f'key: "" {NO_VKEY}'),
    ("no hash", b"a+b", f'key: "a+b" {NO_VKEY}'),
    ("upper-case hash", changed(published.PETER, "c74f20a3", "C74F20A3"),
     'key: "PeterNeumann+C74F20A3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW" is not a...'),
    ("no name", changed(published.PETER, "PeterNeumann", ""), "key: a name of 0 bytes, 1 to 255 are allowed"),
    ("name too long", changed(published.PETER, "PeterNeumann", "n" * 256),
     "key: a name of 256 bytes, 1 to 255 are allowed"),
    ("space in the name", changed(published.PETER, "PeterNeumann", "Peter\u00a0Neumann"),
     'key: name "Peter\\u00a0Neumann" holds a space, a plus sign or a control character'),
    ("another name", changed(published.PETER, "PeterNeumann", "PeterNewmann"),
     "key: the vkey's hash c74f20a3 is not that of its name and key (damaged?)"),
    ("another key", changed(published.PETER, "10TW", "10TX"),
     "key: the vkey's hash c74f20a3 is not that of its name and key (damaged?)"),
    ("no key", b"a+00000000+", "key: the vkey's hash 00000000 is not that of its name and key (damaged?)"),
    ("base64 of Go's long key", published.WRONG_LENGTH.encode(),
     'key: "ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TWBADKEY==" is not the only base64 of...'),
    ("key too long", spelled(b"\1" + bytes(35)), "key: a public key of 35 bytes, Ed25519 has 32"),
    ("key too short", spelled(b"\4" + bytes(31)), "key: a public key of 31 bytes, Ed25519 has 32"),
    ("nothing under the hash", spelled(b""), "key: no algorithm and no public key"),
    ("ML-DSA-44 cosignature", spelled(b"\6" + bytes(1312)),
     "key: signatures of type 6; this verifier knows 1 (Ed25519), 4 (Ed25519 cosignature/v1)"),
    ("unknown algorithm", published.WRONG_ALGORITHM.encode(),
     "key: signatures of type 101; this verifier knows 1 (Ed25519), 4 (Ed25519 cosignature/v1)"),
    ("not base64", changed(published.PETER, "ARpc", "A_pc"),
     'key: "A_pc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW" is not base64'),
    ("line end", published.PETER.encode() + b"\n",
     'key: "ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW\\n" is not base64'),
]  # fmt: skip

NOTE_GOOD: list[Good] = [
    ("one signature", (TEXT + "\n" + LINE).encode(), {}),
    ("two signatures", (TEXT + "\n" + LINE + published.ENOCH_LINE).encode(), {}),
    ("blank line in the text", published.QUASIMODO_NOTE.encode(), {}),
    ("the same signature twice", (TEXT + "\n" + LINE + LINE).encode(), {}),
    ("checkpoint with witnesses", published.ARCHE_NOTE.encode(), {}),
    ("no text but a newline", ("\n\n" + LINE).encode(), {}),
    ("100 signatures", (TEXT + "\n" + LINE * 100).encode(), {}),
    ("long name, short signature", SignedNote(TEXT, (SIGNED,)).encode(), {}),
]
CUT = "note: not a text, a blank line and signature lines (truncated?)"
NOTE: list[Case] = [
    ("empty", b"", CUT),
    ("text alone", TEXT.encode(), CUT),
    ("no signature", (TEXT + "\n").encode(), CUT),
    ("cut in a signature", (TEXT + "\n" + LINE)[:-1].encode(), CUT),
    ("text without a newline", ("text\n" + LINE).encode(), CUT),
    ("control character", ("\x01" + TEXT + "\n" + LINE).encode(), "note: holds a control character"),
    ("tab", ("\t" + TEXT + "\n" + LINE).encode(), "note: holds a control character"),
    ("line ends of Windows", (TEXT + "\n" + LINE).replace("\n", "\r\n").encode(), "note: holds a control character"),
    ("not UTF-8", b"\xff" + (TEXT + "\n" + LINE).encode(), "note: not UTF-8 at byte 0"),
    ("encoded surrogate", b"\xed\xa0\x80" + (TEXT + "\n" + LINE).encode(), "note: not UTF-8 at byte 0"),
    ("unexpected line", (TEXT + "\n" + LINE + "Unexpected line.\n").encode(),
     'note: "Unexpected line." is not a signature line'),
    ("hyphen for the dash", (TEXT + "\n" + LINE.replace(DASH, "-")).encode(), 'note: "- PeterNeumann x08go/ZJk...'),
    ("no signature behind the name", (TEXT + f"\n{DASH} PeterNeumann\n").encode(),
     'note: "\\u2014 PeterNeumann" is not a signature line'),
    ("name with a space", (TEXT + f"\n{DASH} Bad Name x08go/ZJkuBS9UG=\n").encode(),
     'note: "Name x08go/ZJkuBS9UG=" is not base64'),
    ("no name", (TEXT + f"\n{DASH}  x08go/ZJkuBS\n").encode(),
     "note signature: a name of 0 bytes, 1 to 255 are allowed"),
    ("plus in the name", (TEXT + f"\n{DASH} a+b x08go/ZJkuBS\n").encode(),
     'note signature: name "a+b" holds a space, a plus sign or a control character'),
    ("key hash alone", (TEXT + f"\n{DASH} a x08goA==\n").encode(),
     "note: a signature line of 4 bytes, key hash and signature have 5 or more"),
    ("no padding", (TEXT + f"\n{DASH} a x08go/Y\n").encode(), 'note: "x08go/Y" is not base64'),
    ("bits behind the end", (TEXT + f"\n{DASH} a x08go/Z=\n").encode(),
     'note: "x08go/Z=" is not the only base64 of its bytes (RFC 4648 section 3.5)'),
    ("line within base64", (TEXT + f"\n{DASH} a x08g\no/ZJ\n").encode(),
     "note: a signature line of 3 bytes, key hash and signature have 5 or more"),
    ("101 signatures", (TEXT + "\n" + LINE * 101).encode(), "note: 101 signatures, at most 100 are allowed"),
]  # fmt: skip

ROOT = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="
CHECKPOINT_GOOD: list[Good] = [
    ("tlog-checkpoint", published.SOFA_TEXT.encode(), {"size": 20852163}),
    ("sumdb", published.GO_TREE.encode(), {"size": 123456789012, "root": leaf_hash(b"hello world").hex()}),
    ("extension lines", (published.SOFA_TEXT + "extension 1\nextension 2\n").encode(), {}),
    ("empty log", b"a\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n", {"root": EMPTY_ROOT.hex()}),
    ("spaces and plus", f"example log+origin\n1\n{ROOT}\n".encode(), {}),
    ("long origin", f"{LONG}\n9007199254740991\n{ROOT}\n".encode(), {}),
]
LINES = "checkpoint: not at least three lines that end in newlines"
NUMBER = "is not a number of 0 to 9007199254740991 without leading zeros"
CHECKPOINT: list[Case] = [
    ("empty", b"", LINES),
    ("two lines", b"a\n7\n", LINES),
    ("no final newline", f"a\n7\n{ROOT}".encode(), LINES),
    ("no origin", f"\n7\n{ROOT}\n".encode(), "checkpoint: an origin of 0 bytes, 1 to 255 are allowed"),
    ("origin too long", ("\u00e9" * 128 + f"\n7\n{ROOT}\n").encode(),
     "checkpoint: an origin of 256 bytes, 1 to 255 are allowed"),
    ("control character", f"a\x01\n7\n{ROOT}\n".encode(), 'checkpoint: origin "a\\u0001" holds a control character'),
    ("hexadecimal size", f"a\n0xabcdef\n{ROOT}\n".encode(), f'checkpoint: "0xabcdef" {NUMBER}'),
    ("leading zero", f"a\n07\n{ROOT}\n".encode(), f'checkpoint: "07" {NUMBER}'),
    ("negative", f"a\n-7\n{ROOT}\n".encode(), f'checkpoint: "-7" {NUMBER}'),
    ("sign", f"a\n+7\n{ROOT}\n".encode(), f'checkpoint: "+7" {NUMBER}'),
    ("other digits", f"a\n\u0667\n{ROOT}\n".encode(), f'checkpoint: "\\u0667" {NUMBER}'),
    ("too large", f"a\n9007199254740992\n{ROOT}\n".encode(), f'checkpoint: "9007199254740992" {NUMBER}'),
    ("root too long", b"a\n7\nTszzRgjTG6xce+z2AG31kAXYKBgQVtCSCE40HmuwBTOOBIG=\n",
     'checkpoint: "TszzRgjTG6xce+z2AG31kAXYKBgQVtCSCE40HmuwBTOOBIG=" is not the only base64 of...'),
    ("root of 33 bytes", b"a\n7\nTszzRgjTG6xce+z2AG31kAXYKBgQVtCSCE40HmuwBb0A\n",
     "checkpoint: a root hash of 33 bytes, SHA-256 has 32"),
    ("root of an empty log", f"a\n0\n{ROOT}\n".encode(), "checkpoint: no entries, but not the root hash of none"),
    ("empty extension", f"a\n7\n{ROOT}\n\nb\n".encode(),
     "checkpoint: an extension line that is empty or holds a control character"),
]  # fmt: skip

LOG_PROOF_GOOD: list[Good] = [
    ("two hashes, extra", PROOF.encode(), {}),
    ("one entry", LogProof(0, (), SignedNote.parse(published.FOO_NOTE.encode())).encode(), {}),
]
_HEAD, _NOTE = "c2sp.org/tlog-proof@v1\n", published.FOO_NOTE
LOG_PROOF: list[Case] = [
    ("empty", b"", "log proof: does not begin with c2sp.org/tlog-proof@v1"),
    ("another header", f"wrong-header\nindex 0\n\n{_NOTE}".encode(),
     "log proof: does not begin with c2sp.org/tlog-proof@v1"),
    ("line ends of Windows", f"{_HEAD}index 0\n\n{_NOTE}".replace("\n", "\r\n").encode(),
     "log proof: does not begin with c2sp.org/tlog-proof@v1"),
    ("no checkpoint", f"{_HEAD}index 0\n".encode(), "log proof: no blank line before the checkpoint (truncated?)"),
    ("extra is not base64", f"{_HEAD}extra !!notbase64!!\nindex 0\n\n{_NOTE}".encode(),
     'log proof: "!!notbase64!!" is not base64'),
    ("empty extra", f"{_HEAD}extra \nindex 0\n\n{_NOTE}".encode(), "log proof: an extra line without data"),
    ("no index", f"{_HEAD}\n{_NOTE}".encode(), "log proof: nothing in place of the index"),
    ("a hash for the index", f"{_HEAD}{ROOT}\n\n{_NOTE}".encode(), f'log proof: "{ROOT}" in place of the index'),
    ("index is no number", f"{_HEAD}index notanumber\n\n{_NOTE}".encode(), f'log proof: "notanumber" {NUMBER}'),
    ("negative index", f"{_HEAD}index -5\n\n{_NOTE}".encode(), f'log proof: "-5" {NUMBER}'),
    ("leading zero", f"{_HEAD}index 00\n\n{_NOTE}".encode(), f'log proof: "00" {NUMBER}'),
    ("hash is not base64", f"{_HEAD}index 0\n!!notbase64!!\n\n{_NOTE}".encode(),
     'log proof: "!!notbase64!!" is not base64'),
    ("hash too long", f"{_HEAD}index 0\n{'A' * 86}==\n\n{_NOTE}".encode(),
     "log proof: a hash of 64 bytes, SHA-256 has 32"),
    ("64 hashes", (_HEAD + "index 0\n" + f"{ROOT}\n" * 64 + "\n" + _NOTE).encode(),
     "log proof: 64 hashes, at most 63 are allowed"),
    ("not ASCII", f"{_HEAD}index 0\n\u00e9\n\n{_NOTE}".encode(), "log proof: not ASCII at byte 31"),
    ("checkpoint cut", f"{_HEAD}index 0\n\n{_NOTE[:-1]}".encode(),
     "log proof: checkpoint: not a text, a blank line and signature lines (truncated?)"),
]  # fmt: skip

ENTRIES_GOOD: list[Good] = [
    ("three", encode_entries([b"", b"a", b"\0" * 300]), {}),
    ("three empty ones", bytes(6), {}),
]
ENTRIES: list[Case] = [
    ("empty", b"", "entry bundle: 0 entries, not 3"),
    ("two", encode_entries([b"a", b"b"]), "entry bundle: 2 entries, not 3"),
    ("four", encode_entries([b"a", b"b", b"c", b"d"]), "entry bundle: more than 3 entries, not 3"),
    ("half a length", encode_entries([b"a", b"b"]) + b"\0", "entry bundle: ends within an entry (truncated?)"),
    ("cut", encode_entries([b"a", b"b", b"cd"])[:-1], "entry bundle: ends within an entry (truncated?)"),
    ("a length beyond the end", b"\xff\xff", "entry bundle: ends within an entry (truncated?)"),
]
