"""Runs with segments, and segment records, with one thing wrong each, in the manner of bad_documents.py."""

from __future__ import annotations

from typing import Any

from tests.formats import samples, segmented
from tests.vectors.bad_documents import DROP, NO_DIGEST, UPPER, A, Case

ENTRY_FORMATS = '"auditkit/record/v1" or "auditkit/segment/v1"'


def short(steps: int) -> dict[str, Any]:
    """A schedule that ends after so many steps."""
    value = segmented.LOWER.schedule.to_value()
    return {**value, "warmup_steps": 0, "decay_steps": 0, "total_steps": steps}


RUN_SEGMENTS: list[Case] = [
    ("version of one segment", "format", "auditkit/run/v1",
     'run.format: "auditkit/run/v1", but segments are there in "auditkit/run/v3", and only there'),
    ("newer version", "format", "auditkit/run/v4",
     'run.format: "auditkit/run/v4" is newer than "auditkit/run/v3", which this verifier knows'),
    ("version of segments, and none", "segments", DROP,
     'run.format: "auditkit/run/v3", but segments are there in "auditkit/run/v3", and only there'),
    ("empty list", "segments", [], "run.segments: 0 items, 1 to 1024 are allowed"),
    ("unknown key", "segments/0/name", "x", 'run.segments[0]: unknown key "name"'),
    ("no recipe", "segments/0/recipe", DROP, 'run.segments[0]: key "recipe" is missing'),
    ("no data", "segments/1/data", DROP, 'run.segments[1]: key "data" is missing'),
    ("no state", "segments/1/state", DROP, 'run.segments[1]: key "state" is missing'),
    ("state is no digest", "segments/1/state", UPPER, f"run.segments[1].state: {NO_DIGEST}"),
    ("at step 0", "segments/0/step", 0, "run.segments[0].step: 0 is outside 1 to 9999999"),
    ("at the end", "segments/1/step", 3, "run.segments[1].step: 3 is beyond the last step 2 of the run"),
    ("beyond the end", "segments/1/step", 9, "run.segments[1].step: 9 is beyond the last step 2 of the run"),
    ("two at one step", "segments/1/step", 1,
     "run.segments[1].step: 1 is not above 1, where the segment before begins"),
    ("not ascending", "segments/0/step", 2,
     "run.segments[1].step: 2 is not above 2, where the segment before begins"),
    ("nothing changes", "segments/0/recipe", samples.RECIPE.to_value(),
     "run.segments[0]: recipe and data are those of the segment before, so that nothing changes"),
    ("tensors of another width", "segments/0/recipe/model/hidden_size", 32,
     "run.segments[0].recipe.model.hidden_size: 32, but the run began with 64"),
    ("fewer layers", "segments/1/recipe/model/num_layers", 1,
     "run.segments[1].recipe.model.num_layers: 1, but the run began with 2"),
    ("heads cut otherwise", "segments/1/recipe/model/num_kv_heads", 4,
     "run.segments[1].recipe.model.num_kv_heads: 4, but the run began with 2"),
    ("head untied", "segments/1/recipe/model/tied_head", False,
     "run.segments[1].recipe.model.tied_head: False, but the run began with True"),
    ("larger vocabulary", "segments/1/recipe/model/vocab_size", 70000,
     "run.segments[1].recipe.model.vocab_size: 70000, but the run began with 512"),
    ("another initialisation", "segments/0/recipe/init/seed", 8,
     "run.segments[0].recipe.init.seed: 8, but the run began with 7"),
    ("newer numerics", "segments/0/recipe/numerics/version", 2,
     "run.segments[0].recipe.numerics.version: 2 is newer than 1, which this verifier knows"),
    ("altered recipe", "segments/0/recipe/model/sliding_window", 9,
     "recipe.model: sliding_window 9 exceeds context_length 8"),
    ("another tokenizer", "segments/1/data/tokenizer/digest", A,
     f"run.segments[1].data.tokenizer.digest: {A}, but the run began with {samples.DATA.tokenizer.digest}"),
    ("tokenizer elsewhere", "segments/1/data/tokenizer/path", "more/tokenizer.json",
     "run.segments[1].data.tokenizer.path: more/tokenizer.json, but the run began with tokenizer.json"),
    ("another end of text", "segments/1/data/end_of_text", 1,
     "run.segments[1].data.end_of_text: 1, but the run began with 0"),
    ("another layout", "segments/1/data", segmented.WINDOWS_MORE.to_value(),
     "run.segments[1].data.kind: windows, but the run began with frames"),
    ("context of the segment before", "segments/1/data/context_length", 8,
     "run.segments[1].data.context_length: 8, but the recipe says 4"),
    ("no windows", "segments/1/data/windows", 0, "run.segments[1].data.windows: 0 is outside 1 to 1099511627776"),
    ("corpus not listed", "segments/1/data/corpus/path", "more/index.json",
     'run.artifacts: "more/index.json" is missing'),
    ("text not listed", "segments/1/data/corpus/text", "more/text.zst", 'run.artifacts: "more/text.zst" is missing'),
    ("another corpus in one file", "segments/1/data/corpus/path", "corpus.json",
     'run.artifacts: digest of "corpus.json" differs from the one in run.segments[1].data'),
    ("beyond the schedule before", "segments/0/recipe/schedule", short(1),
     "run.segments[1].step: 2 is outside 1 to 1 steps of the schedule"),
    ("beyond the last schedule", "segments/1/recipe/schedule", short(2),
     "run.log.size without segments: 3 is outside 1 to 2 steps of the schedule"),
    ("log of steps only", "log/size", 3, "run.segments[0].step: 1 is beyond the last step 0 of the run"),
    ("log of segments only", "log/size", 2, "run.log.size: 2 records, but 2 are those of segments"),
    ("a step too many", "log/size", 6, "run.artifacts: records.bin has 436 bytes, 4 steps need 576"),
    ("leaves of the first segment's number", "artifacts/2/size", 256,
     "run.artifacts: leaves.bin has 256 bytes, 3 steps need 336"),
    ("state beyond the steps", "states/1/step", 4, "run.states: step 4 is beyond a log of 3 records"),
]  # fmt: skip

RUN_SEGMENTS_WINDOWS: list[Case] = [
    ("another layout", "segments/1/data", segmented.MORE.to_value(),
     "run.segments[1].data.kind: frames, but the run began with windows"),
    ("ids not listed", "segments/1/data/ids/path", "more/ids", 'run.artifacts: "more/ids" is missing'),
    ("other ids in one file", "segments/1/data/ids/path", "ids.bin.zst",
     'run.segments[1].data.ids: "ids.bin.zst" holds other ids in an earlier segment'),
    ("a window too many", "segments/1/data/windows", 6, "run.segments[1].data.windows: 6, but 23 ids make 5"),
    ("rows of the first segment's size", "artifacts/6/size", 460,
     "run.artifacts: records.bin has 460 bytes, 3 steps need 540"),
]  # fmt: skip

SEGMENT: list[Case] = [
    ("newer version", "format", "auditkit/segment/v2",
     'segment record.format: "auditkit/segment/v2" is newer than "auditkit/segment/v1", which this verifier knows'),
    ("unknown key", "name", "x", 'segment record: unknown key "name"'),
    ("missing key", "data", DROP, 'segment record: key "data" is missing'),
    ("step 0", "step", 0, "segment record.step: 0 is outside 1 to 9999999"),
    ("step beyond the limit", "step", 10_000_000, "segment record.step: 10000000 is outside 1 to 9999999"),
    ("negative cursor", "sequence", -1, "segment record.sequence: -1 is outside 0 to 9007199254740991"),
    ("cursor is a text", "sequence", "0", "segment record.sequence: not an integer"),
    ("recipe is no digest", "recipe", {}, f"segment record.recipe: {NO_DIGEST}"),
    ("short digest", "previous", A[1:], f"segment record.previous: {NO_DIGEST}"),
    ("nothing changed", "state_after", segmented.SEGMENT.state_before,
     "segment record: state_after is state_before, so that nothing changed"),
]  # fmt: skip

LOG_ENTRY: list[Case] = [
    ("neither record", "format", "auditkit/run/v1", f'log entry.format: "auditkit/run/v1" is not {ENTRY_FORMATS}'),
    ("no format", "format", DROP, 'log entry: key "format" is missing'),
    ("format is a number", "format", 1, f"log entry.format: int is not {ENTRY_FORMATS}"),
    ("newer segment", "format", "auditkit/segment/v2",
     'segment record.format: "auditkit/segment/v2" is newer than "auditkit/segment/v1", which this verifier knows'),
    ("a step's record that is none", "format", "auditkit/record/v1", 'record: key "micro_batches" is missing'),
]  # fmt: skip
