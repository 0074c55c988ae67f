"""Valid and invalid examples that fuzzing begins from: the committed vectors, and samples of what has no vectors."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import numpy as np

from auditkit.audit.checked import CONTEXT, Checked
from auditkit.audit.history import History, Night
from auditkit.formats import pem
from auditkit.formats.blocks import BlockRow, encode_block
from auditkit.formats.digest import root
from auditkit.formats.dsse import PAYLOAD_TYPE
from auditkit.formats.lease import Lease, LeaseRequest, Leases
from auditkit.formats.zstd import compress
from auditkit.replay.vocabulary import byte_letters
from auditkit.trust.attested import read_attestation
from auditkit.trust.envelope import sign, sign_payload
from auditkit.trust.keys import PrivateKey
from auditkit.trust.rows import Rows
from auditkit.verdict import Verdict
from tests.formats import attestations, published_logs, samples, sources
from tests.vectors import make_formats
from trainer.prepared import Prepared
from trainer.segments import Stage
from trainer.work import Settings

ROOT = Path(__file__).resolve().parents[2]
SCOPE = samples.digest_of("scope")

# Round 42 of quicknet, as the documentation of drand's HTTP interface shows it.
_SIGNATURE = (
    "95a9f9f5b231b7714de1553105d8ffdf3dcda24cfdb1e689319bccf79a9c8ce430a91b811fbfaf763900bc998b5d686a"
)  # fmt: skip
_ROUND = {
    "round": 42,
    "randomness": hashlib.sha256(bytes.fromhex(_SIGNATURE)).hexdigest(),
    "signature": _SIGNATURE,
}


@cache
def vectors() -> dict[str, list[bytes]]:
    """All committed vectors by the name of their parser, good ones first, those above 32 KiB left out."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(make_formats.FOLDER.glob("*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        examples = [*file["good"], *file["bad"]]
        data = [bytes.fromhex(v["hex"]) if "hex" in v else v["text"].encode("utf-8") for v in examples]
        found[file["parser"]] = [example for example in data if len(example) <= 32768]
    return found


def signed(payload: bytes) -> bytes:
    """An envelope over any payload, by a key that the reader knows."""
    return sign_payload(payload, PAYLOAD_TYPE, attestations.KEY).encode()


def sealed(body: bytes) -> bytes:
    """A file of remembered attestations whose final digest fits whatever is before it."""
    return body + bytes.fromhex(root(CONTEXT, body))


def block_row() -> BlockRow:
    """The index row of the sample block."""
    return encode_block(sources.BLOCK, 0, level=3)[1]


def tokenizer() -> bytes:
    """A byte-level BPE with two merges and one special token."""
    letters = byte_letters()
    vocab = {letter: number for number, letter in enumerate(letters)}
    vocab |= {"th": 256, "the": 257}
    value = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 258,
                "content": "<|endoftext|>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [["t", "h"], ["th", "e"]],
        },
    }
    return json.dumps(value).encode("utf-8")


def _trainer() -> dict[str, list[bytes]]:
    prepared = Prepared(samples.DATA, 512, 17, samples.digest_of("ids"))
    stage = Stage(3, 9, samples.RECIPE, prepared, "data-1", samples.digest_of("state"))
    recipes = [path.read_bytes() for path in sorted((ROOT / "trainer" / "recipes").glob("*.toml"))]
    declared = (
        'title = "T"\nlicense = "CC0-1.0"\n[[source]]\nname = "a"\npath = "a.jsonl"\ntitle = "A"\n'
        'license = "CC0-1.0"\nweight = 3\nepochs = 1\ntext_key = "body"\n'
    )
    return {
        "declared": [declared.encode()],
        "metrics": [b'{"step":0,"loss":1.5,"lr":0.1}\n{"step":1,"loss":NaN,"lr":0}\n'],
        "prepared": [prepared.encode()],
        "recipe_toml": recipes,
        "settings": [Settings(9, 3, (1, 2)).encode()],
        "stage": [json.dumps(stage.to_value(), sort_keys=True, separators=(",", ":")).encode()],
        "tokenizer_decode": [tokenizer()],
        "tokenizer_encode": [tokenizer()],
        "given": [tokenizer()],
    }


def _signed() -> dict[str, list[bytes]]:
    key = PrivateKey(bytes(range(32)))
    audits = [audit.statement(attestations.SHA256) for audit in attestations.AUDITS.values()]
    payloads = [statement.encode() for statement in audits]
    envelopes = [sign(statement, attestations.KEY).encode() for statement in audits]
    public, private = key.public.pem(), key.pem()
    proof = b"".join(bytes([n]) * 32 for n in range(3))
    return {
        "any_pem": [public, private],
        "attestation": envelopes,
        "checkpoint_note": [published_logs.SUMDB_NOTE.encode()],
        "consistency": [(3).to_bytes(8, "little") + (7).to_bytes(8, "little") + proof],
        "either": envelopes,
        "inclusion": [(5).to_bytes(8, "little") + (7).to_bytes(8, "little") + proof],
        "lease_request": [LeaseRequest("https://registry.example", "ab" * 32, 5, 1_767_323_045, "0c" * 32).encode()],
        "leases": [Leases("ab" * 32, 7, (Lease(5, 1_767_326_645), Lease(3, 1_767_326_645))).encode()],
        "private_key": [private, public],
        "public_key": [public, private, pem.encode(pem.PUBLIC, bytes(44))],
        "raw_key": [key.public.raw, bytes(32), (1).to_bytes(32, "little"), b"\xff" * 32],
        "signature": [key.sign(b"message"), bytes(64)],
        "signed_note": [published_logs.ARCHE_NOTE.encode(), published_logs.FOO_NOTE.encode()],
        "signed_payload": payloads,
        "tile": [proof],
    }


def _kept() -> dict[str, list[bytes]]:
    audits = [audit.statement(attestations.SHA256) for audit in attestations.AUDITS.values()]
    envelopes = [sign(statement, attestations.KEY).encode() for statement in audits]
    rows = checked(envelopes).encode(SCOPE)
    return {"verified": [rows], "resealed": [rows[:-32]]}


def checked(envelopes: list[bytes]) -> Checked:
    """What is remembered of some envelopes."""
    found = [read_attestation(envelope, attestations.KEYS) for envelope in envelopes]
    digests = np.array([list(hashlib.sha256(envelope).digest()) for envelope in envelopes], np.uint8)
    records = np.array([list(bytes.fromhex(one.record_sha256)) for one in found], np.uint8)
    return Checked(Rows.of([one.entry() for one in found]), digests, records)


def _small() -> dict[str, list[bytes]]:
    frame, _ = encode_block(sources.BLOCK, 0, level=3)
    stored = vectors()
    return {
        "address": [b"https://registry.example:8443/a/", b"HTTP://[::1]:80"],
        "data_section": [json.dumps(run["data"], sort_keys=True, separators=(",", ":")).encode() for run in _runs()],
        "decode_block": [frame, compress(b"\x02\0\0\0{}")],
        "frame": [data for _, data in samples.real_frames()],
        "history": [History((Night("2026-01-02T03:04:05Z", Verdict.MATCH),)).encode()],
        "ids": [compress(samples.IDS), samples.IDS.tobytes()],
        "inflate": [*stored["zstd"], compress(bytes(16)), bytes.fromhex("28b52ffde00000000000010000")],
        "mirrors": [b"https://example.org/runs/demo", b"http://[::1]:8000/a\nhttp://127.0.0.1/b"],
        "policy_file": stored["policy"],
        "relaxed": stored["canonical"],
        "relaxed_recipe": stored["recipe"],
        "remote": [b"https://u:p@example.org:8443/run/run.json?sig=1#x", b"http://[::1]:8000"],
        "retry_after": [b"2", b"Fri, 31 Dec 1999 23:59:59 GMT", b"-1", b"999999999999999999"],
        "round": [json.dumps(_ROUND).encode()],
        "safetensors_header": stored["safetensors"],
        "time": [b"2026-01-02T03:04:05Z", b"1970-01-01T00:00:00Z"],
    }


def _runs() -> list[dict[str, dict[str, object]]]:
    stored = vectors()
    names = [name for name in stored if name == "run" or name.startswith("run_")]
    return [json.loads(stored[name][0]) for name in sorted(names)]


@cache
def seeds() -> dict[str, list[bytes]]:
    """Examples by the name of the parser (tests/formats/parsers.py and tests/fuzz/parsers.py)."""
    return {**vectors(), **_small(), **_signed(), **_kept(), **_trainer()}
