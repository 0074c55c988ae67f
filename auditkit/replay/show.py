"""What a run says about itself: the manifest, one record, the log. Nothing is verified but digests."""

from __future__ import annotations

from itertools import pairwise

from auditkit.formats.bits import f32_from_bits
from auditkit.formats.chain import segment_record
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.recipe import DivergenceConfig
from auditkit.formats.skips import NORM, skip_of
from auditkit.formats.timeline import Segment
from auditkit.replay.changes import changes
from auditkit.replay.run import Run
from auditkit.replay.selection import select


def show_run(run: Run) -> dict[str, object]:
    """The manifest's main facts as JSON values; floats as numbers, for people."""
    manifest, recipe = run.manifest, run.recipe
    return {
        "format": "auditkit/show-run/v1",
        "name": run.name,
        "run_id": run.run_id,
        "manifest": run.manifest_digest,
        "recipe": recipe.digest(),
        "steps": run.size,
        "log_root": manifest.log.root,
        "states": [{"step": s.step, "root": s.root} for s in manifest.states],
        "model": _plain(recipe.model),
        "optimizer": _plain(recipe.optimizer),
        "schedule": _plain(recipe.schedule),
        "batch": {**_plain(recipe.batch), "micro_batches": recipe.batch.micro_batches},
        "numerics": _plain(recipe.numerics),
        "init": _plain(recipe.init),
        **({"divergence": _plain(recipe.divergence)} if recipe.divergence != DivergenceConfig() else {}),
        "data": {
            "title": manifest.data.corpus.title,
            "license": manifest.data.corpus.license,
            "context_length": manifest.data.context_length,
            "windows": manifest.data.windows,
            "seed": manifest.data.seed,
            **_sources(manifest.data),
        },
        **({"segments": _segments(run)} if run.timeline.later else {}),
        "bytes": sum(artifact.size for artifact in manifest.artifacts),
        "mirrors": list(manifest.mirrors),
        **({"publisher": manifest.publisher.text} if manifest.publisher else {}),
    }


def show_step(run: Run, step: int) -> dict[str, object]:
    """One record with its leaves. UsageError: no such step."""
    select(step=step).resolve(run.size)
    record, begun = run.records[step], run.timeline.begun(step)
    return {
        "format": "auditkit/show-step/v1",
        "step": step,
        **({"segment": _segment(run, begun)} if begun else {}),
        "record": record.digest(),
        "previous": record.previous,
        "state_before": record.state_before,
        "state_after": record.state_after,
        "state_before_published": step in run.published,
        "state_after_published": step + 1 in run.published,
        "batch": record.batch,
        "gradient": record.gradient,
        "micro_root": record.micro_root,
        "micro_batches": [{"loss_sum": leaf.loss_sum, "gradient": leaf.gradient} for leaf in run.leaves(step)],
        "loss": f32_from_bits(record.loss),
        "norm": f32_from_bits(record.norm),
        "lr": f32_from_bits(record.lr),
        **({"skipped": _skip(run, step)} if _skip(run, step) else {}),
    }


def show_log(run: Run) -> dict[str, object]:
    """The log: its size, the manifest's root, the root computed over the records, and losses along the run.

    The size counts the records of steps, and of the segments after the first. `skipped` lists steps, if there are any.
    """
    records = run.records
    skipped = [step for step in range(run.size) if _skip(run, step)]
    places = sorted({i * (run.size - 1) // 10 for i in range(11)})
    return {
        "format": "auditkit/show-log/v1",
        "size": run.timeline.entries,
        "root": run.manifest.log.root,
        "computed_root": run.log_root,
        "first": records[0].digest(),
        "last": records[-1].digest(),
        "losses": [{"step": step, "loss": f32_from_bits(records[step].loss)} for step in places],
        **({"skipped": skipped} if skipped else {}),
    }


def _skip(run: Run, step: int) -> str:
    """Why the record of a step says that it was skipped, in words; "" for any other one."""
    recipe, record = run.segment(step).recipe, run.records[step]
    reason = skip_of(recipe, record.gradient, record.norm)
    if reason == NORM:
        return f"norm {f32_from_bits(record.norm):.9g} exceeds max_norm {recipe.divergence.max_norm:.9g}"
    return reason


def _sources(data: DataSpec) -> dict[str, object]:
    """The declared sources, if there are any."""
    return {"sources": [source.to_value() for source in data.sources]} if data.sources else {}


def _segments(run: Run) -> list[dict[str, object]]:
    """The segments after the first: their steps, where they begin in their data, and what is other than before."""
    return [
        {
            "first": segment.start,
            "last": segment.stop - 1,
            "sequence": segment.sequence,
            "changes": changes((before.recipe, before.data), (segment.recipe, segment.data)),
        }
        for before, segment in pairwise(run.timeline.segments)
    ]


def _segment(run: Run, segment: Segment) -> dict[str, object]:
    """The record of the segment that begins with a step."""
    record = segment_record(segment, run.records[segment.start - 1])
    before = run.timeline.segments[segment.number - 1]
    return {
        "record": record.digest(),
        "entry": run.timeline.entry(segment.start) - 1,
        "previous": record.previous,
        "recipe": record.recipe,
        "data": record.data,
        "sequence": record.sequence,
        "state_before": record.state_before,
        "state_after": record.state_after,
        "changes": changes((before.recipe, before.data), (segment.recipe, segment.data)),
    }


def _plain(section: object) -> dict[str, object]:
    # the sections are dataclasses with slots, which vars() cannot read
    return {name: getattr(section, name) for name in getattr(type(section), "__dataclass_fields__")}  # noqa: B009
