"""The targets: parsers in groups, one of which the first byte of an input chooses, and the promise that all keep.

An input is refused by an error that a command reports with an exit code of its table, or it is parsed into a value
that prints the same bytes. It takes at most SECONDS of processor time and a bounded amount of memory for that.
"""

from __future__ import annotations

import random
import time

from auditkit.errors import BadArtifact, Unsupported, Untrusted
from tests.formats.parsers import PARSERS
from tests.fuzz.parsers import MORE
from tests.fuzz.seeds import seeds

INPUT_BYTES = 1 << 16  # the longest input
SECONDS = 2.0  # of processor time for one input, instrumented for coverage
MEMORY_BYTES = 1 << 30  # address space for one input beyond what the process has; a window of zstd is 128 MiB

GROUPS: dict[str, tuple[str, ...]] = {
    "attestation": ("envelope", "statement", "step_audit", "svr", "attestation", "either", "signed_payload"),
    "corpus": ("data_section", "corpus", "shards", "block", "decode_block", "block_index"),
    "json": ("canonical", "relaxed"),
    "keys": ("public_key", "private_key", "any_pem", "raw_key", "signature", "policy", "policy_file"),
    "log": ("entries", "tile", "log_proof", "inclusion", "consistency"),
    "manifest": ("run",),
    "notes": ("note", "checkpoint", "vkey", "signed_note", "checkpoint_note"),
    "recipe": ("recipe", "relaxed_recipe", "recipe_toml"),
    "records": ("records", "compact_records", "leaves", "stream_index", "record", "segment", "log_entry"),
    "safetensors": ("safetensors", "safetensors_header"),
    "state": ("state", "state_index"),
    "texts": (
        "digest", "f32", "f64", "path", "time", "retry_after", "address", "remote", "mirrors",
        "verified", "resealed", "history", "round", "lease_request", "leases",
    ),
    "tokenizer": ("tokenizer_decode", "tokenizer_encode", "given"),
    "trace": ("trace",),
    "trainer": ("settings", "stage", "prepared", "metrics", "declared"),
    "zstd": ("zstd", "inflate", "frame", "ids"),
}  # fmt: skip

_PARSERS = {**PARSERS, **MORE}
REFUSALS = (BadArtifact, Unsupported, Untrusted)


class Broken(AssertionError):
    """A parser did not keep its promise"""


def parser_of(target: str, data: bytes) -> tuple[str, bytes]:
    """The parser that an input is meant for, and its bytes."""
    group = GROUPS[target]
    return group[data[0] % len(group)] if data else group[0], data[1:]


def run(target: str, data: bytes) -> bool:
    """Whether an input is accepted; raises `Broken`, or whatever the parser let through."""
    name, body = parser_of(target, data)
    begin = time.process_time()
    try:
        printed = _PARSERS[name](body)
        accepted = True
    except REFUSALS as error:
        accepted, printed = False, None
        text = error.message + error.hint
        if not error.message or not text.isprintable() or len(text) > 3000:
            raise Broken(f"{name}: the message is {text[:200]!r}") from error
    if printed is not None and printed != body:
        raise Broken(f"{name}: prints {printed[:200]!r}")
    took = time.process_time() - begin
    if took > SECONDS:
        raise Broken(f"{name}: {took:.1f} s for {len(data)} bytes")
    return accepted


def examples(target: str) -> list[bytes]:
    """The inputs that fuzzing a target begins from."""
    found = []
    for number, name in enumerate(GROUPS[target]):
        names = [other for other in seeds() if other == name or (name == "run" and other.startswith("run_"))]
        found += [bytes([number]) + data for other in names for data in seeds()[other]]
    return found


def shuffled(target: str, seed: int) -> list[bytes]:
    """The examples in another order."""
    found = examples(target)
    random.Random(seed).shuffle(found)
    return found
