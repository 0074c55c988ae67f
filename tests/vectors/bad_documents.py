"""Documents with one wrong value each, and the error that each must cause; make_formats.py turns them into vectors.

A case is (name, key path, new value, error). The document is the sample of tests/formats/samples.py, re-encoded
canonically after the change, so that only the value can be what is refused.
"""

from __future__ import annotations

import copy
from typing import Any

DROP = object()  # as a new value: remove the key
Case = tuple[str, str, Any, str]

A, UPPER = "a" * 64, "A" * 64
NO_DIGEST = "not a digest (64 lower-case hexadecimal digits)"


def edited(document: Any, path: str, value: Any) -> Any:
    """A copy of `document` with `value` at a path such as "tensors/0/name"."""
    changed = copy.deepcopy(document)
    *way, last = path.split("/")
    target = changed
    for key in way:
        target = target[int(key)] if isinstance(target, list) else target[key]
    if value is DROP:
        del target[last]
    elif isinstance(target, list):
        target[int(last)] = value
    else:
        target[last] = value
    return changed


RECIPE: list[Case] = [
    ("newer version", "format", "auditkit/recipe/v2",
     'recipe.format: "auditkit/recipe/v2" is newer than "auditkit/recipe/v1", which this verifier knows'),
    ("no version", "format", "auditkit/recipe/v01", 'recipe.format: "auditkit/recipe/v01" is not "auditkit/recipe/v1"'),
    ("version zero", "format", "auditkit/recipe/v0", 'recipe.format: "auditkit/recipe/v0" is not "auditkit/recipe/v1"'),
    ("another format", "format", 1, 'recipe.format: int is not "auditkit/recipe/v1"'),
    ("unknown key", "note", "x", 'recipe: unknown key "note"'),
    ("unknown nested key", "model/bias", True, 'recipe.model: unknown key "bias"'),
    ("missing key", "init/std", DROP, 'recipe.init: key "std" is missing'),
    ("section is a list", "loss", [], "recipe.loss: not an object"),
    ("vocabulary of one", "model/vocab_size", 1, "recipe.model.vocab_size: 1 is outside 2 to 1048576 tokens"),
    ("huge vocabulary", "model/vocab_size", 1048577, "recipe.model.vocab_size: 1048577 is outside 2 to 1048576 tokens"),
    ("bool for an integer", "model/num_layers", True, "recipe.model.num_layers: not an integer"),
    ("integer for a bool", "model/tied_head", 1, "recipe.model.tied_head: not true or false"),
    ("text for an integer", "model/hidden_size", "64", "recipe.model.hidden_size: not an integer"),
    ("heads do not divide", "model/num_kv_heads", 3, "recipe.model: num_heads 4 is no multiple of num_kv_heads 3"),
    ("more kv heads", "model/num_kv_heads", 8, "recipe.model: num_heads 4 is no multiple of num_kv_heads 8"),
    ("odd head", "model/head_dim", 15, "recipe.model: head_dim 15 is odd, but rope rotates pairs"),
    ("wide window", "model/sliding_window", 9, "recipe.model: sliding_window 9 exceeds context_length 8"),
    ("zero eps", "model/norm_eps", "f32:00000000", "recipe.model.norm_eps: 0.0 is outside (0, 1]"),
    ("small theta", "model/rope_theta", "f64:0000000000000000", "recipe.model.rope_theta: 0.0 is outside [1, 1e+12]"),
    ("float as text", "loss/z_loss", "0.5",
     'recipe.loss.z_loss: not a binary32 bit pattern ("f32:" and 8 lower-case hexadecimal digits)'),
    ("f64 for f32", "loss/z_loss", "f64:0000000000000000",
     'recipe.loss.z_loss: not a binary32 bit pattern ("f32:" and 8 lower-case hexadecimal digits)'),
    ("upper-case pattern", "loss/z_loss", "f32:3F800000",
     'recipe.loss.z_loss: not a binary32 bit pattern ("f32:" and 8 lower-case hexadecimal digits)'),
    ("infinite", "loss/z_loss", "f32:7f800000", "recipe.loss.z_loss: f32:7f800000 is not finite"),
    ("not a number", "init/std", "f64:7ff8000000000000", "recipe.init.std: f64:7ff8000000000000 is not finite"),
    ("minus zero", "loss/z_loss", "f32:80000000", "recipe.loss.z_loss: minus zero is not allowed"),
    ("negative", "optimizer/weight_decay", "f64:bfb999999999999a",
     "recipe.optimizer.weight_decay: -0.1 is outside [0, inf]"),
    ("beta of one", "optimizer/beta1", "f64:3ff0000000000000", "recipe.optimizer.beta1: 1.0 is outside [0, 1)"),
    ("unknown optimizer", "optimizer/kind", "sgd", 'recipe.optimizer.kind: "sgd" is not adamw'),
    ("zero std", "init/std", "f64:0000000000000000", "recipe.init.std: 0.0 is outside (0, inf]"),
    ("negative seed", "init/seed", -1, "recipe.init.seed: -1 is outside 0 to 9007199254740991"),
    ("unknown schedule", "schedule/kind", "linear", 'recipe.schedule.kind: "linear" is not cosine or wsd'),
    ("decay with cosine", "schedule/kind", "cosine",
     "recipe.schedule: decay_steps must be 0 for cosine, which decays to the end"),
    ("phases exceed total", "schedule/total_steps", 4,
     "recipe.schedule: warmup_steps 2 + decay_steps 3 exceed total_steps 4"),
    ("min above peak", "schedule/min_lr", "f64:3ff0000000000000",
     "recipe.schedule: min_lr 1.0 exceeds peak_lr 0.001"),
    ("large micro-batch", "batch/micro_batch_sequences", 4,
     "recipe.batch: micro_batch_sequences 4 exceeds sequences 3"),
    ("bits", "numerics/body_bits", 16, "recipe.numerics.body_bits: 16 is not 14 or 21 or 24"),
    ("bits as text", "numerics/head_bits", "14", 'recipe.numerics.head_bits: "14" is not 14 or 21 or 24'),
    ("unknown product", "numerics/product", "bf16", 'recipe.numerics.product: "bf16" is not fx or f32'),
    ("fixed-point bits with f32", "numerics/product", "f32",
     "recipe.numerics: body_bits 14 does not fit product f32, use 24"),
    ("binary32 bits with fx", "numerics/head_bits", 24,
     "recipe.numerics: head_bits 24 does not fit product fx, use 14 or 21"),
    ("numerics version", "numerics/version", 2,
     "recipe.numerics.version: 2 is newer than 1, which this verifier knows"),
    ("numerics version zero", "numerics/version", 0, "recipe.numerics.version: 0 is not 1"),
    ("version is true", "numerics/version", True, "recipe.numerics.version: True is not 1"),
    ("empty fold", "numerics/fold", [], "recipe.numerics.fold: 0 items, 1 to 8 are allowed"),
    ("fold of nine levels", "numerics/fold", [2] * 9, "recipe.numerics.fold: 9 items, 1 to 8 are allowed"),
    ("fold of one", "numerics/fold", [8, 1], "recipe.numerics.fold[1]: 1 is outside 2 to 1048576"),
    ("fold is a number", "numerics/fold", 8, "recipe.numerics.fold: not a list"),
    ("fold of texts", "numerics/fold", ["8"], "recipe.numerics.fold[0]: not an integer"),
    ("divergence is a text", "divergence", "skip", "recipe.divergence: not an object"),
    ("divergence without a bound", "divergence", {"action": "skip"}, 'recipe.divergence: key "max_norm" is missing'),
    ("divergence with a further key", "divergence", {"action": "skip", "max_norm": "f32:00000000", "most": 3},
     'recipe.divergence: unknown key "most"'),
    ("unknown action", "divergence", {"action": "clip", "max_norm": "f32:3f800000"},
     'recipe.divergence.action: "clip" is not stop or skip'),
    ("infinite bound", "divergence", {"action": "skip", "max_norm": "f32:7f800000"},
     "recipe.divergence.max_norm: f32:7f800000 is not finite"),
    ("negative bound", "divergence", {"action": "skip", "max_norm": "f32:bf800000"},
     "recipe.divergence.max_norm: -1.0 is outside [0, inf]"),
    ("divergence that says what holds without it", "divergence", {"action": "stop", "max_norm": "f32:00000000"},
     "recipe.divergence: to stop without a bound is said by leaving the section out"),
]  # fmt: skip

STATE: list[Case] = [
    ("unknown key", "rng", 0, 'state document: unknown key "rng"'),
    ("no tensors", "tensors", [], "state document.tensors: 0 items, 1 to 131072 are allowed"),
    ("negative step", "step", -1, "state document.step: -1 is outside 0 to 10000000 steps"),
    ("upper-case digest", "recipe", UPPER, f"state document.recipe: {NO_DIGEST}"),
    ("out of order", "tensors/0/name", "z", 'state document: tensor "adam_m/norm" is out of order (role, then name)'),
    ("listed twice", "tensors/1/name", "embedding", 'state document: tensor "adam_m/embedding" is listed twice'),
    ("unknown role", "tensors/0/role", "adam", 'state document.tensors[0].role: "adam" is not "adam_m" or "adam_v" or'
     ' "grad" or "param"'),
    ("gradient in a state", "tensors/3/role", "grad",
     'state document: tensor "norm" is grad F32, a state holds adam_m, adam_v, param in F32'),
    ("moments cast", "tensors/0/dtype", "BF16", 'state document.tensors[0].dtype: "BF16" is not "F32" or "I64" or "U16"'
     ' or "U32"'),
    ("integers in a state", "tensors/0/dtype", "I64",
     'state document: tensor "embedding" is adam_m I64, a state holds adam_m, adam_v, param in F32'),
    ("unsafe name", "tensors/0/name", "../x",
     'state document.tensors[0].name: "../x" is not a tensor name (1 to 200 of letters, digits and _.-)'),
    ("negative dimension", "tensors/0/shape", [-1, 3],
     'tensor "embedding": shape holds something other than integers of 0 and more'),
    ("dimension is true", "tensors/0/shape", [True, 3],
     'tensor "embedding": shape holds something other than integers of 0 and more'),
    ("shape wraps", "tensors/0/shape", [4294967296, 4294967296],
     'tensor "embedding": shape [4294967296, 4294967296] is larger than 17592186044416 bytes'),
    ("nine dimensions", "tensors/0/shape", [1] * 9, "state document.tensors[0].shape: 9 items, 0 to 8 are allowed"),
]  # fmt: skip

STATE_INDEX: list[Case] = [
    ("no shards", "files", [], "state index.files: 0 items, 1 to 65536 are allowed"),
    ("folder in path", "files/0/path", "a/b", 'state index.files[0].path: unsafe name "a/b" (letters, digits and ._+-'
     " only, no dot at either end)"),
    ("path of the document", "files/0/path", "State.json",
     'state index: paths "State.json" and "state.json" are one file where case is ignored'),
    ("same path", "files/0/path", "SHARD-00001.safetensors.zst",
     'state index: paths "SHARD-00001.safetensors.zst" and "shard-00001.safetensors.zst" are one file where case is'
     " ignored"),
    ("no header frame", "files/0/frames/0/role", "param",
     'state index: frame name: "" is not a tensor name (1 to 200 of letters, digits and _.-)'),
    ("second header", "files/0/frames/1/role", "header",
     'state index: header frame with the name "embedding", it has none'),
    ("gap", "files/0/frames/1/offset", 101,
     'state index: shard "shard-00000.safetensors.zst": frame "embedding" starts at byte 101, not at 100'),
    ("short", "files/0/size", 251,
     'state index: shard "shard-00000.safetensors.zst": frames end at byte 250 of 251'),
    ("empty frame", "files/0/frames/0/length", 0,
     "state index.files[0].frames[0].length: 0 is outside 1 to 1125899906842624 bytes"),
    ("stored twice", "files/1/frames/3/role", "adam_m", 'state index: tensor "adam_m/norm" is stored twice'),
]  # fmt: skip

RECORD: list[Case] = [
    ("unknown key", "time", 0, 'record: unknown key "time"'),
    ("missing key", "numerics", DROP, 'record: key "numerics" is missing'),
    ("unknown nested key", "micro_batches/size", 2, 'record.micro_batches: unknown key "size"'),
    ("infinite loss", "loss", "f32:7f800000", "record.loss: f32:7f800000 is not finite"),
    ("number as loss", "loss", 6,
     'record.loss: not a binary32 bit pattern ("f32:" and 8 lower-case hexadecimal digits)'),
    ("upper-case digest", "batch", UPPER, f"record.batch: {NO_DIGEST}"),
    ("short digest", "run", A[1:], f"record.run: {NO_DIGEST}"),
    ("no micro-batches", "micro_batches/count", 0, "record.micro_batches.count: 0 is outside 1 to 1048576"),
    ("negative step", "step", -1, "record.step: -1 is outside 0 to 9999999"),
    ("step 0 with a previous record", "step", 0,
     "record.previous: step 0 has no previous record, 64 zeros are expected"),
]  # fmt: skip

CORPUS: list[Case] = [
    ("no documents", "documents", [], "corpus.documents: 0 items, 1 to 524288 are allowed"),
    ("unknown key", "documents/0/language", "en", 'corpus.documents[0]: unknown key "language"'),
    ("listed twice", "documents/1/name", "1801 Jefferson", 'corpus: document "1801 Jefferson" is listed twice'),
    ("empty name", "documents/0/name", "", "corpus: document name: 0 characters, 1 to 200 are allowed"),
    ("escape sequence in a name", "documents/0/name", "\x1b[2J",
     'corpus: document name: "\\u001b[2J" holds an unprintable character'),
    ("direction override", "documents/0/name", "a\u202eb",
     'corpus: document name: "a\\u202eb" holds an unprintable character'),
    ("no tokens", "documents/1/tokens", 0,
     'corpus: document "empty": tokens: 0 is outside 1 to 1125899906842624 tokens'),
    ("size is true", "documents/0/size", True, 'corpus: document "1801 Jefferson": size: not an integer'),
    ("digest", "documents/0/digest", UPPER, f'corpus: document "1801 Jefferson": digest: {NO_DIGEST}'),
]  # fmt: skip
