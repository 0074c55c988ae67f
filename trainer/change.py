"""Declare that recipe or data change from the last complete state on; what was declared last can be taken back.

Nothing is trained here. The change is one replacement of `segments.json`; before it, data that are new to the run get
their folder, which nobody looks at until then. So a kill leaves the run as it was, or changed.
"""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from auditkit.cli import console
from auditkit.errors import BadArtifact, Incomplete, UsageError
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.timeline import check_change, check_changes
from auditkit.replay.changes import changes
from trainer import lock, prepared, recipe_toml
from trainer.disk import TEMPORARY, explain, link_or_copy, remove, remove_temporaries, sync_folder
from trainer.log import read_rows
from trainer.prepared import Prepared
from trainer.recheck import corpus_files
from trainer.run import check_steps
from trainer.segments import Course, Stage, begun_root, is_home
from trainer.states import StoredState, complete_steps
from trainer.work import TOKENIZER, Work

IDS_FILES = ("ids.bin", "ids.chk")


@dataclass(frozen=True)
class ChangeOptions:
    """What changes; None: that stays as it is.

    recipe      a recipe file
    data        a work folder that was prepared with this run's tokenizer
    data_seed   of the order of the windows
    steps       where the run ends then, by default with the recipe's schedule
    """

    recipe: Path | None = None
    data: Path | None = None
    data_seed: int | None = None
    steps: int | None = None


def change(folder: Path, options: ChangeOptions) -> str:
    """Declare a segment that begins with the last complete state; returns a summary for people.

    A change that was declared for this very state, and of which no step is complete, is replaced.

    Raises `UsageError` where nothing would change or what may not change would, `Incomplete` before the first step.
    """
    with lock.hold(folder):
        course, done = _course(folder)
        stored = _last_state(course, done)
        before = replace(course, stages=tuple(stage for stage in course.stages if stage.step < done))
        stage, source = _stage(course, before, options, done)
        made = _checked(before, stage)
        segment = made.timeline.segments[-1]
        stage = replace(stage, state=begun_root(stored, segment))
        made = replace(made, stages=(*before.stages, stage))
        if source is not None:
            _bring(Work(source), made.home(stage), stage.prepared)
        made.save_later()
        _drop_unused(made)
    if len(before.stages) < len(course.stages):
        console.tell(f"the change that was declared before for step {done} is replaced")
    console.tell(f"declared; python -m trainer resume {folder} trains on")
    said = {"step": done, "changes": _said(made), "sequence": segment.sequence, "steps": made.steps}
    return "\n".join(f"{name:<9} {value}" for name, value in (said | {"state": stage.state}).items())


def withdraw(folder: Path) -> str:
    """Take back the change that was declared last, if no step of it is complete; returns a summary for people.

    Raises `UsageError` if there is none.
    """
    with lock.hold(folder):
        course, done = _course(folder)
        if len(course.stages) == 1 or course.stages[-1].step != done:
            raise UsageError(f"{folder}: no change is declared of which no step is complete")
        kept = replace(course, stages=course.stages[:-1])
        kept.save_later()
        _drop_unused(kept)
    return f"withdrawn {_said(course)}\nsteps     {kept.steps}"


def _said(course: Course) -> str:
    """What changes with the last segment, in words."""
    before, last = ((stage.recipe, stage.prepared.data) for stage in course.stages[-2:])
    return changes(before, last)


def _course(folder: Path) -> tuple[Course, int]:
    """The run of a work folder, and its last complete step."""
    work = Work(folder)
    course = Course.load(work)
    remove_temporaries(folder)
    done = max(complete_steps(work.states), default=0)
    if done == 0:
        raise Incomplete(f"{folder}: no step is complete", hint="before the first step, run another recipe instead")
    if done < course.stages[-1].step:
        raise Incomplete(
            f"{folder}: the segment from step {course.stages[-1].step} on has lost its first state",
            hint=f"python -m trainer resume {folder}",
        )
    return course, done


def _last_state(course: Course, done: int) -> StoredState:
    """The last complete state, whose document is the one that its record leads to."""
    stored = StoredState.open(course.work.state(done))
    course.check_state(stored, done)
    if read_rows(course.work.folder, done)[-1].state_after != stored.document.root():
        raise BadArtifact(f"{stored.folder}: not the state that record {done - 1} leads to")
    return stored


def _stage(course: Course, before: Course, options: ChangeOptions, done: int) -> tuple[Stage, Path | None]:
    """The new stage, its root still open, and the folder from which its data have to be brought, if they are new.

    `course` is what is declared now, of which `before` is what stays.
    """
    last = before.stages[-1]
    recipe = last.recipe if options.recipe is None else recipe_toml.load(options.recipe)
    home, found, source = last.home, last.prepared, None
    if options.data is not None:
        other = prepared.load(Work(options.data))
        same = next((stage for stage in before.homes() if _same_text(stage.prepared, other)), None)
        if same is None:
            home, source = _new_home(course), options.data
            found = _under(home, other)
        else:
            home, found = same.home, _with_paths(other, same.prepared.data)
    seed = found.data.seed if options.data_seed is None else options.data_seed
    data = _windows(found, recipe.model.context_length, seed)
    steps = recipe.schedule.total_steps if options.steps is None else options.steps
    return Stage(done, steps, recipe, replace(found, data=data), home), source


def _new_home(course: Course) -> str:
    """A folder name that no declared segment uses: one that is about to be replaced must be whole until then."""
    used = {stage.home for stage in course.stages}
    return next(name for number in itertools.count(1) if (name := f"data-{number}") not in used)


def _same_text(held: Prepared, other: Prepared) -> bool:
    """Whether the files of two preparations are the same, whatever windows are cut from them."""
    return (held.ids, held.data.corpus.digest, held.data.tokenizer.digest) == (
        other.ids,
        other.data.corpus.digest,
        other.data.tokenizer.digest,
    )


def _under(home: str, other: Prepared) -> Prepared:
    """A preparation whose files lie in a folder of the run; the tokenizer is the run's own."""
    corpus = other.data.corpus
    moved = replace(corpus, path=f"{home}/{corpus.path}", text=f"{home}/{corpus.text}")
    return replace(other, data=replace(other.data, corpus=moved))


def _with_paths(other: Prepared, held: DataSpec) -> Prepared:
    moved = replace(other.data.corpus, path=held.corpus.path, text=held.corpus.text)
    return replace(other, data=replace(other.data, corpus=moved))


def _windows(found: Prepared, context_length: int, seed: int) -> DataSpec:
    """The data section with windows of another length and in another order."""
    data = replace(found.data, context_length=context_length, seed=seed)
    windows = sum(map(data.windows_of, data.sources)) if data.sources else (found.tokens - 1) // context_length
    return replace(data, windows=windows)


def _checked(before: Course, stage: Stage) -> Course:
    """The run with the stage, if it may follow; raises `UsageError`."""
    first, last = before.stages[0], before.stages[-1]
    if (stage.recipe, stage.prepared.data) == (last.recipe, last.prepared.data):
        raise UsageError("nothing changes: recipe and data are those of the segment before")
    if stage.steps <= stage.step:
        raise UsageError(
            f"the run would end at step {stage.steps}, and {stage.step} are done",
            hint="schedule.total_steps counts from the beginning of the run; or say --steps",
        )
    check_steps(stage.recipe, stage.steps)
    made = replace(before, stages=(*before.stages, stage))
    try:
        check_change((first.recipe, first.prepared.data), (stage.recipe, stage.prepared.data), "change")
        check_changes(first.recipe, first.prepared.data, made.changes, made.steps)
    except BadArtifact as error:
        hint = error.hint
        if stage.prepared.data.tokenizer.digest != first.prepared.data.tokenizer.digest:
            hint = f"python -m trainer prepare .. --tokenizer {before.work.folder / TOKENIZER}"
        raise UsageError(error.message, hint=hint) from error
    stage.prepared.check_recipe(stage.recipe)
    made.check_data()
    return made


def _bring(source: Work, home: Work, found: Prepared) -> None:
    """Give the run the files of a prepared folder, as links where the file system has them, complete or not at all."""
    temporary = home.folder.with_name(f"{TEMPORARY}{home.folder.name}")
    paths = [*corpus_files(source, found), *(name for name in IDS_FILES if (source.folder / name).is_file())]
    try:
        for path in paths:
            target = temporary / path
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source.folder / path, target)
        for parent, _, _ in os.walk(temporary):
            sync_folder(Path(parent))
        if home.folder.exists():  # of a change that came to nothing
            remove(home.folder)
        os.rename(temporary, home.folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise explain(error, None, then="declare the change again") from error
    sync_folder(home.folder.parent)


def _drop_unused(course: Course) -> None:
    """Remove folders of data that no segment uses."""
    used = {stage.home for stage in course.stages}
    for path in list(course.work.folder.iterdir()):
        if is_home(path.name) and path.is_dir() and path.name not in used:
            remove(path)
