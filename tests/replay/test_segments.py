"""Verification across changes of recipe and data: no flags for an honest run, and every changed segment is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import auditkit
from auditkit.errors import BadArtifact, MachineFault
from auditkit.formats.leaves import LEAF_BYTES
from auditkit.formats.run import RunManifest
from auditkit.formats.timeline import Change
from auditkit.replay.backend import choose
from auditkit.replay.boundary import entered_in_memory
from auditkit.replay.data import inspect
from auditkit.replay.diff import diff, open_named
from auditkit.replay.estimate import estimate
from auditkit.replay.needs import needs
from auditkit.replay.plan import intervals
from auditkit.replay.report import Status, StepReport
from auditkit.replay.run import open_run
from auditkit.replay.selection import select
from auditkit.replay.show import show_log, show_run, show_step
from auditkit.verdict import Verdict
from tests.replay.make_run import flip_state
from tests.replay.make_segments import BASE, LOWER, SHORT, STEPS, Parts, go_on, publish

LAYOUTS = [False, True]
SIDES = [(2, 3), (5, 6), (8, 9)]  # the last step before a change and the first one after it


@pytest.fixture(params=LAYOUTS, ids=["frames", "windows"])
def run(request: pytest.FixtureRequest, segmented: Path, segmented_compact: Path) -> str:
    """The honest run in both layouts."""
    return str(segmented_compact if request.param else segmented)


def verify(run: Path | str, step: int) -> tuple[auditkit.Report, StepReport]:
    """The report on a step, and that step's own."""
    report = auditkit.verify(run, step=step, device="cpu")
    return report, next((found for found in report.steps if found.step == step), report.steps[-1])


def test_every_step_matches(run: str) -> None:
    report = auditkit.verify(run, steps=(0, STEPS), device="cpu")
    assert report.verdict is Verdict.MATCH, report.to_json()
    assert [step.verdict for step in report.steps] == [Verdict.MATCH] * STEPS
    assert report.checks[1].detail == (
        "12 records and 3 segment records (before steps 3, 6, 9), each naming the one before;"
        " 6 published states where they say"
    )
    assert report.checks[2].detail.endswith(" over all 12 records and 3 segment records")
    assert not any("change" in text for text in report.not_checked)


@pytest.mark.parametrize("step", [step for pair in SIDES for step in pair])
def test_each_side_of_a_change_matches_alone(run: str, step: int) -> None:
    report, found = verify(run, step)
    assert report.verdict is Verdict.MATCH, report.to_json()
    begun = step in (3, 6, 9)
    assert found.start == {3: 3, 6: 6, 9: 8, 2: 0, 5: 5, 8: 8}[step]
    assert (f"before step {step}" in found.checks[0].detail) is begun
    with open_run(run) as opened:
        record = opened.record(step)
        assert found.checks[0].detail.startswith(record.state_before)
        assert (record.state_before != opened.state_before(step)) is begun


@pytest.mark.parametrize("seed", range(4))
def test_random_steps_match(run: str, seed: int) -> None:
    assert auditkit.verify(run, random=3, seed=seed, device="cpu").verdict is Verdict.MATCH


def test_a_report_says_through_which_changes_no_replay_went(run: str) -> None:
    one = "the change of recipe or data before step 9: no replay went through it"
    two = "the changes of recipe or data before steps 6, 9: no replay went through them"
    assert one in auditkit.verify(run, steps="3:7", device="cpu").not_checked
    assert two in auditkit.verify(run, step=3, device="cpu").not_checked


def test_the_tokens_follow_from_the_data_of_their_segment(run: str) -> None:
    with open_run(run) as opened:
        for step, (first, count, width) in {
            5: (15, 3, 16), 6: (0, 3, 16), 8: (6, 3, 16), 9: (0, 5, 10), 11: (10, 5, 10)
        }.items():  # fmt: skip
            report = inspect(opened, step)
            assert report.verdict is Verdict.MATCH, report.message
            assert [sequence.number for sequence in report.sequences] == list(range(first, first + count))
            assert {sum(p.end - p.begin for p in sequence.passages) for sequence in report.sequences} == {width + 1}
            assert report.title == ("Words in no order" if step < 6 else "Words, and more of them")


def test_recipe_and_data_are_those_of_the_segment(run: str) -> None:
    with open_run(run) as opened:
        assert [opened.segment(step).recipe for step in (2, 3, 8, 9)] == [BASE, LOWER, LOWER, SHORT]
        assert [opened.tokens(step).shape for step in (8, 9)] == [(3, 17), (5, 11)]
        assert [len(opened.leaves(step)) for step in (8, 9)] == [2, 5]
        assert [record.micro_batches for record in opened.records] == [2] * 9 + [5] * 3
        assert opened.log_root == opened.manifest.log.root


def test_what_is_shown(run: str) -> None:
    with open_run(run) as opened:
        shown = show_run(opened)
        assert shown["steps"] == STEPS
        rows = shown["segments"]
        assert isinstance(rows, list)
        assert [(row["first"], row["last"], row["sequence"]) for row in rows] == [(3, 5, 9), (6, 8, 0), (9, 11, 0)]
        assert rows[0]["changes"] == "schedule.peak_lr 0.003 to 0.001, schedule.min_lr 0.0003 to 0.0005"
        assert rows[2]["changes"] == (
            "model.context_length 16 to 10, batch.sequences 3 to 5, batch.micro_batch_sequences 2 to 1,"
            " data.windows 118 to 189"
        )
        assert "data.seed 5 to 6" in rows[1]["changes"]
        segment = show_step(opened, 9)["segment"]
        assert isinstance(segment, dict)
        assert (segment["entry"], segment["sequence"], segment["recipe"]) == (11, 0, SHORT.digest())
        assert show_step(opened, 9)["previous"] == segment["record"]
        assert segment["previous"] == show_step(opened, 8)["record"]
        assert "segment" not in show_step(opened, 8)
        log = show_log(opened)
        assert (log["size"], log["root"]) == (15, log["computed_root"])


def test_a_run_without_segments_shows_none(honest: Path) -> None:
    with open_run(str(honest)) as opened:
        assert "segments" not in show_run(opened)
        assert "segment" not in show_step(opened, 4)


def test_what_is_needed_lies_where_it_is_read(segmented: Path) -> None:
    with open_run(str(segmented)) as opened:
        found = needs(opened, intervals([8, 9], opened.published))
        spans = [(need.offset, need.length) for need in found.ranges if need.path == "leaves.bin"]
        assert spans == [(16 + 16 * LEAF_BYTES, 2 * LEAF_BYTES), (16 + 18 * LEAF_BYTES, 5 * LEAF_BYTES)]


def test_a_compact_run_needs_the_ids_of_all_data(segmented_compact: Path) -> None:
    with open_run(str(segmented_compact)) as opened:
        found = needs(opened, intervals([0], opened.published))
        assert [need.path for need in found.files if need.purpose == "token ids"] == ["ids.bin.zst", "more/ids.bin.zst"]


def test_a_plan_counts_the_steps_of_each_shape(run: str) -> None:
    with open_run(run) as opened:
        found = estimate(opened, select(steps="8:12"), choose("cpu", 1))
        assert (found.steps, found.verdict) == (4, Verdict.MATCH)
        assert found.seconds > 0


def test_states_on_both_sides_can_be_compared(run: str) -> None:
    left, right = open_named(f"{run}:6"), open_named(f"{run}:8")
    found = diff(left, right, ("left", "right"))
    assert [(name, a, b) for name, a, b in found.fields] == [
        ("step", "6", "8"),
        ("sequence", "18", "6"),
    ]
    assert ("recipe", BASE.digest(), LOWER.digest()) in diff(open_named(f"{run}:3"), right, ("a", "b")).fields


def rewritten(folder: Path, change: Callable[[tuple[Change, ...]], tuple[Change, ...]]) -> Path:
    """The run with other segments in its manifest, and nothing else changed."""
    place = folder / "run.json"
    manifest = RunManifest.parse(place.read_bytes())
    place.write_bytes(replace(manifest, changes=change(manifest.changes)).encode())
    return folder


def refused(folder: Path, step: int, number: int) -> tuple[str, str]:
    """Message and hint of a BAD_ARTIFACT at check `number`."""
    report, found = verify(folder, step) if number > 3 else (auditkit.verify(folder, step=step, device="cpu"), None)
    assert report.verdict is Verdict.BAD_ARTIFACT, report.to_json()
    checks = report.checks if found is None else found.checks
    assert {check.number for check in checks if check.status is Status.FAILED} == {number}
    return (report.message, report.hint) if found is None else (found.message, found.hint)


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ({"sequence": 18}, "as the step before left it: nothing was changed"),
        ({"sequence": 18, "recipe": BASE.digest()}, "under the recipe of the segment from step 0 on and with the data"),
        ({"recipe": BASE.digest()}, "under the recipe of the segment from step 0 on"),
        ({"recipe": SHORT.digest()}, "under the recipe of the segment from step 9 on"),
        ({"step": 7}, "as state 7: the step of the segment is another"),
        ({"sequence": 1}, "recipe, data or step of the segment in run.json are not those of the training"),
    ],
)
def test_a_state_that_becomes_another_is_named(
    stretches: Parts, tmp_path: Path, claim: dict[str, object], reason: str
) -> None:
    """The publisher is consistent in everything but what the state becomes at step 6."""
    lie = stretches.copy()
    lie.claims[6] = replace(stretches.document(6, begun=True), **claim).root()  # type: ignore[arg-type]
    folder = publish(lie, tmp_path / "lie")
    message, hint = refused(folder, 6, 4)
    assert message.startswith(f"the segment record of step 6 says that state 6 becomes {lie.claims[6]},")
    assert message.endswith(f"it becomes {stretches.document(6, begun=True).root()}")
    assert reason in hint
    assert verify(folder, 5)[0].verdict is Verdict.MATCH
    assert verify(folder, 8)[0].verdict is Verdict.MATCH  # from state 8, which is right


def test_a_cursor_that_goes_on_where_it_should_begin_anew_is_found_on_the_way(stretches: Parts, tmp_path: Path) -> None:
    """State 9 is not published: the replay comes to it from state 8."""
    lie = stretches.copy()
    lie.claims[9] = replace(stretches.document(9, begun=True), sequence=9).root()
    folder = publish(lie, tmp_path / "lie")
    report, found = verify(folder, 9)
    assert (report.verdict, found.start) == (Verdict.BAD_ARTIFACT, 8)
    assert found.message.startswith("the segment record of step 9 says that state 9 becomes")
    assert "with the data cursor of the segment before" in found.hint
    beyond, last = verify(folder, 11)
    assert beyond.verdict is Verdict.BAD_ARTIFACT
    assert last.message == "not reached: step 9 on the way gave no state to go on from"
    assert [step.step for step in beyond.steps if step.on_the_way] == [9]


def test_another_recipe_in_the_manifest(segmented: Path, stretches: Parts, tmp_path: Path) -> None:
    """The log root is no longer that of the records; the published state tells which segment."""
    other = replace(LOWER, optimizer=replace(LOWER.optimizer, weight_decay=0.2))
    folder = publish(stretches, tmp_path / "run")
    rewritten(folder, lambda changes: (replace(changes[0], recipe=other), *changes[1:]))
    message, hint = refused(folder, 0, 3)
    assert message.startswith("the records have log root")
    assert hint.startswith("the segment record of step 3 says that state 3 becomes")


def test_another_place_of_a_change(stretches: Parts, tmp_path: Path) -> None:
    folder = publish(stretches, tmp_path / "run")
    rewritten(folder, lambda changes: (changes[0], replace(changes[1], step=7), changes[2]))
    message, hint = refused(folder, 0, 3)
    assert message.startswith("the records have log root")
    assert "data of the manifest, or of its segments, are not those of the records" in hint


def test_a_segment_that_is_left_out(stretches: Parts, tmp_path: Path) -> None:
    folder = publish(stretches, tmp_path / "run")
    place = folder / "run.json"
    manifest = RunManifest.parse(place.read_bytes())
    fewer = replace(manifest, changes=manifest.changes[1:], log=replace(manifest.log, size=14))
    place.write_bytes(fewer.encode())
    refused(folder, 0, 3)


def test_a_state_published_under_what_comes_after_it(stretches: Parts, tmp_path: Path) -> None:
    """A published state is as the step before left it; this one says what the next begins from."""
    lie = stretches.copy()
    honest = stretches.document
    lie.document = lambda number, begun=False: honest(number, begun=begun or number == 6)  # type: ignore[method-assign]
    lie.rows = make_rows(stretches)
    message, hint = refused(publish(lie, tmp_path / "lie"), 0, 2)
    assert message.startswith("published state 6 has root")
    assert hint == "this is the root from which the segment of step 6 on begins, not the one before it"


def make_rows(parts: Parts) -> list[object]:
    """The honest rows."""
    from tests.replay.make_segments import rows_of

    return list(rows_of(parts))


def test_a_step_trained_by_the_recipe_before_is_a_mismatch(stretches: Parts, tmp_path: Path) -> None:
    """The segment says the lower rate, step 4 was taken with the one before it: everything else is consistent."""
    lie = stretches.copy()
    go_on(lie, 4, BASE)
    for number in range(5, STEPS):
        go_on(lie, number)
    folder = publish(lie, tmp_path / "lie")
    report, found = verify(folder, 4)
    assert report.verdict is Verdict.MISMATCH
    assert {difference.field for difference in found.differences} == {"lr", "state_after"}
    for other in (3, 5, 6, 9):
        assert verify(folder, other)[0].verdict is Verdict.MATCH


def test_a_machine_whose_memory_changes_at_a_boundary_accuses_nobody(segmented: Path, stretches: Parts) -> None:
    with open_run(str(segmented)) as opened:
        segment, backend = opened.timeline.segments[3], choose("cpu", 1)
        held = stretches.states[9]
        assert entered_in_memory(opened, backend, held, segment) == opened.record(9).state_before
        broken = flip_state(held, "adam_v", "model.norm.weight", 3)
        with pytest.raises(MachineFault, match="the state changed in memory while it was in use"):
            entered_in_memory(opened, backend, broken, segment)


def test_data_that_end_in_a_segment_are_refused(segmented: Path, stretches: Parts, tmp_path: Path) -> None:
    """Every segment's sequences must exist in its own declared data."""
    from auditkit.formats.data_spec import Source

    def limited(change: Change) -> Change:
        data = change.data
        source = Source("web", "T", "MIT", 16 * 8 + 1, 1, 1)  # eight windows, once
        tokenizer = replace(data.tokenizer, library="tokenizers 0.0.0")
        return replace(change, data=replace(data, sources=(source,), windows=8, tokenizer=tokenizer))

    folder = publish(stretches, tmp_path / "run")
    rewritten(folder, lambda changes: (changes[0], limited(changes[1]), changes[2]))
    report = auditkit.verify(folder, step=0, device="cpu")
    assert (report.verdict, report.checks[0].status) == (Verdict.BAD_ARTIFACT, Status.FAILED)
    assert report.message.startswith('the data end after 8 sequences, when source "web" has been used for 1 epoch; 9')
    with pytest.raises(BadArtifact):
        open_run(str(folder))
