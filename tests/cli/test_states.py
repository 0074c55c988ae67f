"""States that are not those of the recipe, published with every digest recomputed: refused by name, never replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.formats import canonical
from auditkit.model.state import State
from tests.cli.conftest import Cli
from tests.fuzz.runs import seal
from tests.replay.make_run import Parts, publish

WEIGHT = "model.layers.1.mlp.up_proj.weight"
HEAD, TIED = "lm_head.weight", "model.embed_tokens.weight"

Role = dict[str, Any]


def without(role: Role) -> Role:
    """One tensor is missing."""
    return {name: array for name, array in role.items() if name != WEIGHT}


def turned(role: Role) -> Role:
    """One tensor in another shape, of the same bytes."""
    return {**role, WEIGHT: np.ascontiguousarray(role[WEIGHT].reshape(role[WEIGHT].shape[::-1]))}


def twice(role: Role) -> Role:
    """The tied table under the name of the head as well."""
    return {**role, HEAD: role[TIED]}


def untied(role: Role) -> Role:
    """The same, with other values."""
    return {**role, HEAD: role[TIED] + np.float32(1)}


CHANGES = {
    "a tensor is missing": (without, WEIGHT),
    "a tensor of another shape": (turned, WEIGHT),
    "tied weights stored twice": (twice, HEAD),
    "tied weights that differ": (untied, HEAD),
}


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_a_state_of_other_tensors_is_refused_by_name(main: Cli, parts: Parts, tmp_path: Path, what: str) -> None:
    change, named = CHANGES[what]
    lie, state = parts.copy(), parts.states[4]
    params, adam_m, adam_v = (change(dict(role)) for role in (state.params, state.adam_m, state.adam_v))
    lie.states[4] = State(state.step, params, adam_m, adam_v)
    done = main("verify", "--run", publish(lie, tmp_path / "lie"), "--step", 4)
    assert done.code == 4, done.stdout + done.stderr
    assert named in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda rows: [row for row in rows if (row["role"], row["name"]) != ("adam_v", WEIGHT)],
            f'tensor "adam_v/{WEIGHT}" is missing, expected F32 [24, 16]',
        ),
        (
            lambda rows: [{**row, "dtype": "U16"} if row["name"] == WEIGHT else row for row in rows],
            f'tensor "{WEIGHT}" is adam_m U16, a state holds adam_m, adam_v, param in F32',
        ),
    ],
    ids=["a moment is missing", "moments of another type"],
)
def test_a_document_of_other_tensors_is_refused_by_name(
    main: Cli, parts: Parts, tmp_path: Path, change: Callable[[list[Any]], list[Any]], words: str
) -> None:
    run = publish(parts.copy(), tmp_path / "lie")
    path = run / "states/00000004/state.json"
    value = json.loads(path.read_bytes())
    path.write_bytes(canonical.dumps({**value, "tensors": change(value["tensors"])}))
    seal(run, path)
    done = main("verify", "--run", run, "--step", 4)
    assert done.code == 4, done.stdout + done.stderr
    assert words in done.stdout + done.stderr
