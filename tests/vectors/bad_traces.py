"""Traces with one thing wrong each, in the manner of bad_documents.py."""

from __future__ import annotations

from tests.vectors.bad_documents import DROP, NO_DIGEST, UPPER, Case

TRACE: list[Case] = [
    ("newer version", "format", "auditkit/trace/v2",
     'trace.format: "auditkit/trace/v2" is newer than "auditkit/trace/v1", which this verifier knows'),
    ("unknown key", "program", "x", 'trace: unknown key "program"'),
    ("missing key", "batch", DROP, 'trace: key "batch" is missing'),
    ("no ops", "ops", [], "trace.ops: 0 items, 1 to 262144 are allowed"),
    ("unknown pass", "ops/0/pass", "sideways",
     'trace.ops[0].pass: "sideways" is not "forward" or "backward" or "weights" or "sum" or "update"'),
    ("no micro-batch", "ops/0/micro_batch", DROP, 'trace.ops[0]: key "micro_batch" is missing'),
    ("micro-batch of the update", "ops/2/micro_batch", 0, 'trace.ops[2]: unknown key "micro_batch"'),
    ("micro-batch that was not traced", "ops/1/micro_batch", 2,
     "trace.ops[1]: micro-batch 2 is not one of those that were traced"),
    ("unknown key of an op", "ops/1/input", "x", 'trace.ops[1]: unknown key "input"'),
    ("escape sequence in a place", "ops/0/at", "\x1b[2J",
     'trace.ops[0].at: unsafe name "\\u001b[2J" (letters, digits and ._+- only, no dot at either end)'),
    ("op without a name", "ops/0/op", "",
     'trace.ops[0].op: unsafe name "" (letters, digits and ._+- only, no dot at either end)'),
    ("no outputs", "ops/0/out", [], "trace.ops[0].out: 0 items, 1 to 4 are allowed"),
    ("five outputs", "ops/0/out", ["0" * 64] * 5, "trace.ops[0].out: 5 items, 1 to 4 are allowed"),
    ("upper-case output", "ops/1/out/1", UPPER, f"trace.ops[1].out[1]: {NO_DIGEST}"),
    ("micro-batches out of order", "micro_batches", [1, 0],
     "trace.micro_batches: not numbers of micro-batches, each once and ascending"),
    ("a micro-batch twice", "micro_batches", [0, 0],
     "trace.micro_batches: not numbers of micro-batches, each once and ascending"),
    ("true as a micro-batch", "micro_batches", [0, True],
     "trace.micro_batches: not numbers of micro-batches, each once and ascending"),
    ("a whole step that lacks one", "micro_batches", [0, 2], "trace.micro_batches: a whole step has all of them"),
    ("update of a part", "whole", False, "trace.ops[2]: pass update in a trace that is not of the whole step"),
    ("negative step", "step", -1, "trace.step: -1 is outside 0 to 10000000 steps"),
    ("back end that is a path", "backend", "a/b",
     'trace.backend: unsafe name "a/b" (letters, digits and ._+- only, no dot at either end)'),
]  # fmt: skip
