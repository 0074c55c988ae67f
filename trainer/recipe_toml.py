"""The recipe as people write it (TOML, decimal numbers) to the recipe as it is published (bit patterns)."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

from auditkit.errors import AuditkitError, BadArtifact
from auditkit.formats.bits import to_f32
from auditkit.formats.recipe import (
    BatchConfig,
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

# Only what is off, or the one kind there is, may be left out: a recipe is read more often than it is written.
DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"sliding_window": 0},
    "loss": {"z_loss": 0.0},
    "optimizer": {"kind": "adamw", "clip_norm": 0.0},
    "schedule": {"decay_steps": 0},
    "numerics": {"version": 1, "product": "fx"},
}

# Kept in binary32 by the contract; the nearest one to the decimal number is taken. All other reals are binary64.
BINARY32 = {"norm_eps", "z_loss", "eps", "clip_norm"}


def load(path: Path) -> Recipe:
    """Read a recipe file; raises `BadArtifact` naming file, section and key, `Unavailable` if it cannot be read."""
    try:
        table = tomllib.loads(read_bytes(path).decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadArtifact(f"{path}: {str(error).lower()}") from error
    try:
        return from_table(table)
    except AuditkitError as error:
        raise BadArtifact(f"{path}: {error.message}", hint=error.hint) from error


def from_table(table: dict[str, Any]) -> Recipe:
    """The recipe a TOML table stands for; raises `BadArtifact` naming section and key."""
    _refuse_unknown(table, set(SECTIONS), "section")
    recipe = Recipe(**{name: _section(name, kind, table.get(name, {})) for name, kind in SECTIONS.items()})
    # Parsing what is written is the one place where ranges and relations between fields are checked.
    return Recipe.parse(recipe.encode())


def _section(name: str, kind: type[Any], given: object) -> Any:
    if not isinstance(given, dict):
        raise BadArtifact(f"[{name}] must be a section")
    hints = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    _refuse_unknown(given, names, f"key in [{name}]")
    values = DEFAULTS.get(name, {}) | given
    missing = sorted(names - set(values))
    if missing:
        raise BadArtifact(f"[{name}] lacks {', '.join(missing)}")
    return kind(**{key: _value(f"{name}.{key}", key, hints[key], values[key]) for key in names})


def _value(where: str, key: str, kind: type[Any], value: object) -> Any:
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadArtifact(f"{where} must be a number, not {value!r}")
        return _real(where, float(value), binary32=key in BINARY32)
    if type(value) is not kind:
        raise BadArtifact(f"{where} must be of type {kind.__name__}, not {value!r}")
    return value


def _real(where: str, value: float, *, binary32: bool) -> float:
    if not math.isfinite(value):
        raise BadArtifact(f"{where} must be finite, not {value}")
    if not binary32:
        return value
    rounded = to_f32(value)
    if rounded == 0.0 and value != 0.0:
        raise BadArtifact(f"{where}: {value} is too small for binary32")
    return rounded


def _refuse_unknown(given: dict[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadArtifact(f"unknown {what}: {', '.join(unknown)}", hint=f"known: {', '.join(sorted(known))}")
