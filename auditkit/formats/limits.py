"""Every limit of the formats, with its unit, in one place; each is checked before memory is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds, inclusive; the unit is the end of each name."""

    json_depth_levels: int = 16
    json_values: int = 2 * 1024 * 1024  # a parsed value takes about 100 times the 3 bytes of "[],"
    recipe_bytes: int = 64 * 1024
    manifest_bytes: int = 16 * 1024 * 1024
    state_document_bytes: int = 32 * 1024 * 1024
    state_index_bytes: int = 32 * 1024 * 1024
    corpus_index_bytes: int = 64 * 1024 * 1024
    record_bytes: int = 4096
    safetensors_header_bytes: int = 100_000_000  # the safetensors format's own limit
    zstd_window_bytes: int = 128 * 1024 * 1024  # 2^27, what `zstd -d` reads without --long
    name_characters: int = 200
    path_characters: int = 200
    segment_characters: int = 100
    url_characters: int = 2000
    steps: int = 10_000_000
    segments: int = 1024  # of a run; each has a recipe and a data section in run.json
    micro_batches_per_step: int = 1 << 20
    tensors_per_state: int = 1 << 17
    tensor_dimensions: int = 8
    tensor_bytes: int = 1 << 44
    shards_per_state: int = 1 << 16
    artifacts: int = 1 << 17
    states: int = 1 << 16
    mirrors: int = 32
    documents: int = 1 << 19
    sources: int = 256
    source_weights: int = 1 << 16  # sum of all; the sequences of one period of SPEC.md section 6.8.2
    sampled_documents: int = 1 << 20  # a tokenizer is trained on one document in at most so many
    corpus_shards: int = 1 << 16
    shard_blocks: int = 1 << 16
    block_documents: int = 1 << 16
    block_bytes: int = 1 << 28  # a reader holds the text of a block, and its ids, in memory
    ids_bytes: int = 1 << 30  # token ids of a run without a stream: a verifier holds them in memory
    key_file_bytes: int = 16 * 1024
    envelope_bytes: int = 64 * 1024
    envelope_signatures: int = 16
    statement_subjects: int = 16
    svr_properties: int = 64
    message_characters: int = 2000
    micro_batches_characters: int = 20_000
    policy_bytes: int = 4 * 1024 * 1024
    policy_auditors: int = 4096
    policy_witnesses: int = 256
    note_bytes: int = 256 * 1024  # a signed note; 16 signatures of 5 kB, which C2SP asks for, take 110 kB
    note_signatures: int = 100
    note_name_bytes: int = 255  # name of a key, origin of a log: what a length byte of tlog-cosignature can say
    log_entries: int = (1 << 53) - 1
    log_entry_bytes: int = 65535  # C2SP tlog-tiles: a length of 16 bits
    log_proof_bytes: int = 1024 * 1024
    trace_bytes: int = 128 * 1024 * 1024
    trace_ops: int = 1 << 18  # 32 layers and 64 micro-batches have 150,000
    file_bytes: int = 1 << 50  # 1 PiB; keeps every sum of sizes below 2^53


LIMITS = Limits()
