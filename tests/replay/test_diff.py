"""Two states, bit by bit: signed zeros and NaN payloads in stored states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from auditkit.errors import BadArtifact, Unavailable, UsageError
from auditkit.model.state import State, document
from auditkit.replay.diff import Differences, diff, open_named
from tests.replay.make_run import Parts
from trainer.state_files import write_state

NORM = "model.norm.weight"


def stored(parts: Parts, folder: Path, words: list[int]) -> Path:
    """State 4 with the first elements of a tensor replaced by words."""
    params = dict(parts.states[4].params)
    changed = params[NORM].copy()
    changed[: len(words)] = np.array(words, dtype=np.uint32).view(np.float32)
    params[NORM] = changed
    state: State = replace(parts.states[4], params=params)
    write_state(folder, state, document(state, parts.recipe))
    return folder


def compare(left: Path, right: Path) -> Differences:
    return diff(open_named(str(left)), open_named(str(right)), ("left", "right"))


def test_minus_zero_and_nan_payloads_differ(parts: Parts, tmp_path: Path) -> None:
    """Case 9: (a) and (b) differ and the bits are named."""
    left = stored(parts, tmp_path / "left", [0x00000000, 0x7FC00000])
    right = stored(parts, tmp_path / "right", [0x80000000, 0xFFC00000])
    found = compare(left, right)
    (tensor,) = found.tensors
    assert not found.equal
    assert (tensor.left_bits, tensor.right_bits, tensor.differing) == ("00000000", "80000000", 2)


def test_equal_nan_is_equal(parts: Parts, tmp_path: Path) -> None:
    """Case 9 (c)."""
    words = [0x7FC00001, 0xFFC00000]
    assert compare(stored(parts, tmp_path / "a", words), stored(parts, tmp_path / "b", words)).equal


def test_run_and_step_name_the_same_state_as_its_folder(honest: Path) -> None:
    found = diff(open_named(f"{honest}:4"), open_named(str(honest / "states/00000004")), ("a", "b"))
    assert found.equal
    assert found.compared == 60


def test_states_of_two_steps_differ_in_their_cursor_too(honest: Path) -> None:
    found = diff(open_named(f"{honest}:4"), open_named(f"{honest}:5"), ("a", "b"))
    assert found.fields == (("step", "4", "5"), ("sequence", "12", "15"))
    assert len(found.tensors) == 60


def test_a_damaged_state_is_a_bad_artifact(parts: Parts, tmp_path: Path) -> None:
    left, right = stored(parts, tmp_path / "left", [0]), stored(parts, tmp_path / "right", [1])
    shard = left / "shard-00000.safetensors.zst"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(BadArtifact, match="shard-00000"):
        compare(left, right)


def test_names_that_lead_nowhere(honest: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unavailable, match=r"state\.json"):
        open_named(str(tmp_path / "empty"))
    for name in ("nothing", f"{honest}:x", f"{honest}:3", f"{honest}:99"):
        with pytest.raises(UsageError):
            open_named(name)


def test_tensors_of_either_side_are_counted_once(honest: Path) -> None:
    other = open_named("sotu-tiny:0")
    left = open_named(f"{honest}:4")
    pairs = {e.order for e in left.document.tensors} | {e.order for e in other.document.tensors}
    assert len(left.document.tensors) < len(pairs)  # or counting one side would do
    for found in (diff(left, other, ("left", "right")), diff(other, left, ("left", "right"))):
        assert found.compared == len(pairs)
        assert len(found.tensors) <= found.compared
        alone = [tensor for tensor in found.tensors if tensor.note.startswith("only in ")]
        both = len(left.document.tensors) + len(other.document.tensors) - len(pairs)
        assert len(alone) == len(pairs) - both
