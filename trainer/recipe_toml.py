"""The recipe as people write it (TOML, decimal numbers) to the recipe as it is published (bit patterns).

Every key is required, also where a feature is off: a forgotten `clip_norm` must not become a run without clipping. The
one section that may be left out says what else than to stop is done about a step that diverges.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

from auditkit.errors import AuditkitError, BadArtifact
from auditkit.formats.bits import to_f32
from auditkit.formats.canonical import words
from auditkit.formats.recipe import (
    BatchConfig,
    DivergenceConfig,
    InitConfig,
    LossConfig,
    ModelConfig,
    NumericsConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)
from trainer.disk import read_bytes

SECTIONS: dict[str, type[Any]] = {
    "model": ModelConfig,
    "loss": LossConfig,
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "batch": BatchConfig,
    "numerics": NumericsConfig,
    "init": InitConfig,
}

OPTIONAL_SECTIONS: dict[str, type[Any]] = {"divergence": DivergenceConfig}

# Kept in binary32 by the contract; the nearest one to the decimal number is taken. All other reals are binary64.
BINARY32 = {"norm_eps", "z_loss", "eps", "clip_norm", "max_norm"}

# Kept in binary64, but rounded to binary32 before they meet a parameter: beyond its range no step has a result.
WITHIN_BINARY32 = {"std", "residual_std", "peak_lr", "min_lr"}


# The one list of integers; left out, gradients are added exactly.
OPTIONAL = {"fold"}

_REQUIRED = "every key must be written, also where it is off: trainer/recipes has complete recipes"


def load(path: Path) -> Recipe:
    """Read a recipe file; raises `BadArtifact` naming file, section and key, `Unavailable` if it cannot be read."""
    try:
        table = tomllib.loads(read_bytes(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8, and numbers with more digits than Python converts
        raise BadArtifact(f"{path}: {words(error).lower()}") from error
    try:
        return from_table(table)
    except AuditkitError as error:
        raise BadArtifact(f"{path}: {error.message}", hint=error.hint) from error


def from_table(table: dict[str, Any]) -> Recipe:
    """The recipe a TOML table stands for; raises `BadArtifact` naming section and key."""
    kinds = SECTIONS | OPTIONAL_SECTIONS
    _refuse_unknown(table, set(kinds), "section")
    missing = [name for name in SECTIONS if name not in table]
    if missing:
        raise BadArtifact(f"section [{missing[0]}] is missing", hint=_REQUIRED)
    recipe = Recipe(**{name: _section(name, kinds[name], given) for name, given in table.items()})
    # Parsing what is written is the one place where ranges and relations between fields are checked.
    return Recipe.parse(recipe.encode())


def _section(name: str, kind: type[Any], given: object) -> Any:
    if not isinstance(given, dict):
        raise BadArtifact(f"[{name}] must be a section")
    hints = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    _refuse_unknown(given, names, f"key in [{name}]")
    missing = sorted(names - set(given) - OPTIONAL)
    if missing:
        raise BadArtifact(f"[{name}] lacks {', '.join(missing)}", hint=_REQUIRED)
    return kind(**{key: _value(f"{name}.{key}", key, hints[key], given[key]) for key in names & set(given)})


def _value(where: str, key: str, kind: type[Any], value: object) -> Any:
    if key in OPTIONAL:
        if type(value) is not list or not value or not all(type(item) is int for item in value):
            raise BadArtifact(f"{where} must be a list of integers, not {words(repr(value))}")
        return tuple(value)
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadArtifact(f"{where} must be a number, not {words(repr(value))}")
        real = _real(where, value, binary32=key in BINARY32)
        if key in WITHIN_BINARY32:
            _real(where, real, binary32=True)
        return real
    if type(value) is not kind:
        raise BadArtifact(f"{where} must be of type {kind.__name__}, not {words(repr(value))}")
    return value


def _real(where: str, given: float, *, binary32: bool) -> float:
    try:
        value = float(given)
    except OverflowError as error:
        raise BadArtifact(f"{where}: the number is too large for binary64") from error
    if not math.isfinite(value):
        raise BadArtifact(f"{where} must be finite, not {value}")
    if not binary32:
        return value
    try:
        rounded = to_f32(value)
    except BadArtifact as error:
        raise BadArtifact(f"{where}: {error.message}") from error
    if rounded == 0.0 and value != 0.0:
        raise BadArtifact(f"{where}: {value} is too small for binary32")
    return rounded


def _refuse_unknown(given: dict[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        message = words(f"unknown {what}: {', '.join(unknown)}")
        raise BadArtifact(message, hint=f"known: {', '.join(sorted(known))}")
