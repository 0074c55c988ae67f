"""The parsers that tests/formats/parsers.py does not list: keys, signed things, a trainer's own files, streams of zstd.

Each takes bytes and returns the bytes that the parsed value prints, or None where there is no other form to print.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.audit import drand, history
from auditkit.audit.checked import Checked
from auditkit.errors import UsageError
from auditkit.formats import canonical, lease, mirrors, pem, stream, times
from auditkit.formats.blocks import decode_block
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.digest import content_digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.merkle import HASH_BYTES, verify_consistency, verify_inclusion
from auditkit.formats.note import NoteKey, SignedNote
from auditkit.formats.policy import Policy
from auditkit.formats.recipe import Recipe
from auditkit.formats.safetensors import SafetensorsHeader, header_length
from auditkit.formats.tiles import decode_tile
from auditkit.replay.encoder import TextEncoder
from auditkit.replay.vocabulary import Vocabulary
from auditkit.store.inflate import inflate
from auditkit.store.limits import STORE_LIMITS
from auditkit.store.source import parse_remote
from auditkit.store.waiting import retry_after
from auditkit.trust import notes
from auditkit.trust.attested import read_attestation, read_either
from auditkit.trust.keys import PrivateKey, PublicKey
from tests.formats import attestations, policies, published_logs, samples
from tests.fuzz import seeds
from trainer import recipe_toml
from trainer.data import declared, given
from trainer.metrics import read_metrics
from trainer.prepared import Prepared
from trainer.segments import Stage
from trainer.work import Settings

Parser = Callable[[bytes], bytes | None]

INFLATED = 16  # bytes that a stream of zstd must hold here
_KEY = policies.KEYS["alice"]


def _relaxed(data: bytes) -> None:
    value = canonical.loads_relaxed(data, what="document", limit=1 << 20)
    assert canonical.loads(canonical.dumps(value), what="document", limit=1 << 23) == value


def _relaxed_recipe(data: bytes) -> None:
    recipe = Recipe.parse_relaxed(data)
    assert Recipe.parse(recipe.encode()) == recipe


def _data_section(data: bytes) -> bytes:
    fields = Fields(canonical.loads(data, what="data", limit=LIMITS.manifest_bytes), "data")
    return canonical.dumps(DataSpec.from_fields(fields).to_value())


def _tile(data: bytes) -> bytes:
    return b"".join(decode_tile(data, len(data) // HASH_BYTES or 1))


def _hashes(data: bytes) -> Iterator[bytes]:
    return (data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES))


def _inclusion(data: bytes) -> None:
    """Index, size and path of a proof are the prover's."""
    index, size = (int.from_bytes(data[at : at + 8], "little", signed=True) for at in (0, 8))
    verify_inclusion(bytes(32), index, size, list(_hashes(data[16:])), bytes(32))


def _consistency(data: bytes) -> None:
    old, new = (int.from_bytes(data[at : at + 8], "little", signed=True) for at in (0, 8))
    verify_consistency(old, new, list(_hashes(data[16:])), bytes(32), bytes(32))


def _signed_note(data: bytes) -> None:
    """Every kind of key that may be looked for in a note."""
    note = SignedNote.parse(data)
    for key in (published_logs.PETER, published_logs.REMORA):
        notes.verify(note, NoteKey.parse(key))


def _checkpoint_note(data: bytes) -> None:
    notes.verify_checkpoint(SignedNote.parse(data), NoteKey.parse(published_logs.SUMDB))


def _attestation(data: bytes) -> None:
    read_attestation(data, attestations.KEYS, records=samples.CHAIN)


def _either(data: bytes) -> None:
    read_either(data, attestations.KEYS)


def _signed_payload(data: bytes) -> None:
    """A statement that its auditor signed: what an auditor may say, not only what a stranger may send."""
    envelope = seeds.signed(data)
    read_either(envelope, attestations.KEYS)


def _public(data: bytes) -> None:
    """Line ends and the text around a key are free, so there is one other form to print."""
    key = PublicKey.from_pem(data)
    assert PublicKey.from_pem(key.pem()) == key


def _private(data: bytes) -> None:
    key = PrivateKey.from_pem(data)
    assert PrivateKey.from_pem(key.pem()).public == key.public


def _signature(data: bytes) -> None:
    _KEY.verify(data, b"message")


def _raw_key(data: bytes) -> None:
    PublicKey(data).verify(bytes(64), b"message")


def _any_pem(data: bytes) -> None:
    label, der = pem.decode(data, "key", pem.PUBLIC, pem.PRIVATE)
    assert pem.decode(pem.encode(label, der), "key", label) == (label, der)


def _policy(data: bytes) -> None:
    Policy.parse(data)


def _address(data: bytes) -> None:
    text = _text(data)
    assert lease.registry_address(lease.registry_address(text)) == lease.registry_address(text)


def _remote(data: bytes) -> None:
    parse_remote(_text(data))


def _mirrors(data: bytes) -> None:
    mirrors.check_mirrors(tuple(_text(data).split("\n")))
    for text in _text(data).split("\n"):
        parse_remote(text)  # whatever a manifest may name can be fetched from


def _retry(data: bytes) -> None:
    asked = retry_after(_text(data), now=1.7e9)
    assert asked is None or asked >= 0


def _time(data: bytes) -> bytes:
    return times.time_text(times.seconds(_text(data))).encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _through_file(read: Callable[[Path], Any]) -> Parser:
    """For what is read from a path."""

    def parser(data: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=_scratch()) as file:
            file.write(data)
            file.flush()
            read(Path(file.name))

    return parser


def _scratch() -> str:
    """Memory rather than a disk, where the system has one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


def _inflate(path: Path) -> None:
    size = path.stat().st_size
    for room in (INFLATED, 5):
        for _ in inflate(path, 0, size, memoryview(bytearray(room)), INFLATED, "frame", STORE_LIMITS):
            pass


def _frame(data: bytes) -> None:
    row, _ = samples.real_frames()[0]
    stream.decode_frame(data, row.raw_length, "U16", (3, 9), digest=row.digest)


def _ids(data: bytes) -> None:
    raw = content_digest(data)
    found = stream.decode_ids(data, count=len(data) // 2 or 1, dtype="U16", vocab_size=512, digest=raw)
    assert found.dtype == np.dtype("<u2")


def _block(data: bytes) -> None:
    decode_block(data, seeds.block_row())


def _verified(data: bytes) -> bytes:
    return Checked.parse(data, seeds.SCOPE).encode(seeds.SCOPE)


def _resealed(data: bytes) -> None:
    """A remembered file whose final digest fits: what is before it must still be sound."""
    Checked.parse(seeds.sealed(data), seeds.SCOPE)


def _round(data: bytes) -> None:
    drand.parse_round(data, drand.QUICKNET, "relay")


def _settings(data: bytes) -> bytes:
    return Settings.parse(data).encode()


def _stage(data: bytes) -> bytes:
    fields = Fields(canonical.loads(data, what="segments.json", limit=LIMITS.manifest_bytes), "segments.json")
    return canonical.dumps(Stage.from_fields(fields).to_value())


def _metrics(data: bytes) -> None:
    for line, row in read_metrics(data):
        assert line in data
        assert row["step"] < 1 << 60 or row["step"]


def _encode(data: bytes) -> None:
    encoder = TextEncoder(data)
    for _ in encoder.ids(["we the people <|endoftext|> 1 2 3"]):
        pass


def _decode(data: bytes) -> None:
    found = Vocabulary.parse(data)
    found.decode([*found.pieces][:8])


def _given(data: bytes) -> None:
    given.check(data, "<|endoftext|>")


def _safetensors_of_any_size(data: bytes) -> None:
    """The size of the file is what the disk says, whatever the header says."""
    for size in (len(data), 1 << 40):
        header_length(data, size)
        SafetensorsHeader.parse(data, size)


def _only_usage(parser: Parser) -> Parser:
    """For what people write on a command line or in a file of their own: their mistake is one of usage."""

    def checked(data: bytes) -> bytes | None:
        try:
            return parser(data)
        except UsageError as error:
            assert error.message
            return None

    return checked


MORE: dict[str, Parser] = {
    "address": _only_usage(_address),
    "any_pem": _only_usage(_any_pem),
    "attestation": _attestation,
    "checkpoint_note": _checkpoint_note,
    "consistency": _consistency,
    "data_section": _data_section,
    "decode_block": _block,
    "declared": _only_usage(_through_file(declared.from_toml)),
    "either": _either,
    "frame": _frame,
    "given": _given,
    "history": lambda data: history.History.parse(data).encode(),
    "ids": _ids,
    "inclusion": _inclusion,
    "inflate": _through_file(_inflate),
    "lease_request": lambda data: lease.LeaseRequest.parse(data).encode(),
    "leases": lambda data: lease.Leases.parse(data).encode(),
    "metrics": _metrics,
    "mirrors": _mirrors,
    "policy_file": _policy,
    "prepared": lambda data: Prepared.parse(data).encode(),
    "private_key": _only_usage(_private),
    "public_key": _only_usage(_public),
    "raw_key": _raw_key,
    "recipe_toml": _through_file(recipe_toml.load),
    "relaxed": _relaxed,
    "relaxed_recipe": _relaxed_recipe,
    "remote": _only_usage(_remote),
    "resealed": _resealed,
    "retry_after": _retry,
    "round": _round,
    "safetensors_header": _safetensors_of_any_size,
    "settings": _settings,
    "signature": _signature,
    "signed_note": _signed_note,
    "signed_payload": _signed_payload,
    "stage": _stage,
    "tile": _tile,
    "time": _time,
    "tokenizer_decode": _decode,
    "tokenizer_encode": _encode,
    "verified": _verified,
}
