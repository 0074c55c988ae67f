"""What changes from one segment of a run to the next, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from auditkit.formats.data_spec import DataSpec, Source
from auditkit.formats.recipe import Recipe


def changes(before: tuple[Recipe, DataSpec], after: tuple[Recipe, DataSpec]) -> str:
    """Every field that is another: `schedule.peak_lr 0.001 to 0.0005, data.seed 3 to 4`. Floats as decimal numbers.

    Paths of files are told only where nothing else is another.
    """
    pairs = zip(_fields(*before), _fields(*after), strict=True)
    said = {name: f"{name} {_word(old)} to {_word(new)}" for (name, old), (_, new) in pairs if old != new}
    told = [text for name, text in said.items() if name not in _PATHS]
    return ", ".join(told or said.values())


_PATHS = {"data.corpus.path", "data.corpus.text", "data.ids.path"}


def _fields(recipe: Recipe, data: DataSpec) -> Iterator[tuple[str, object]]:
    for section in fields(recipe):
        part = getattr(recipe, section.name)
        yield from ((f"{section.name}.{field.name}", getattr(part, field.name)) for field in fields(part))
    for name in ("seed", "windows", "sources"):
        yield f"data.{name}", getattr(data, name)
    for name in ("title", "license", "digest", "path", "text"):
        yield f"data.corpus.{name}", getattr(data.corpus, name)
    for name in ("library", "one_in"):
        yield f"data.tokenizer.{name}", getattr(data.tokenizer, name)
    for name in ("count", "digest", "path"):
        yield f"data.ids.{name}", getattr(data.ids, name, None)


def _word(value: object) -> str:
    if value is None or value in ((), ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, tuple):
        return "+".join(f"{item.name}*{item.weight}" if isinstance(item, Source) else str(item) for item in value)
    return str(value)
