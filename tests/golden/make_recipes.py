"""Makes tests/golden/recipes.json on a GPU: the record of each of 100 steps of five small trainings.

    python -m tests.golden.make_recipes --device cuda OUT.json
    python -m tests.golden.make_recipes --device cpu OUT.json --compare tests/golden/recipes.json

Beside OUT.json it writes the states before step 97, from which tests/golden/test_recipes.py computes the last steps
again on a CPU. `--compare` says whether every record equals those of another file, and exits with 1 when not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from auditkit.formats import zstd
from auditkit.formats.bits import f32_from_bits, parse_f32_bits
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow, expand, log_root
from auditkit.formats.safetensors import SafetensorsHeader
from auditkit.formats.state import shard_key
from auditkit.formats.tensors import little_endian
from auditkit.model.state import ROLES, State, document, expected_tensors, initial_state
from auditkit.replay.backend import Backend, choose
from tests.golden.recipes import RECIPES, STEPS, rows

FILE = Path(__file__).resolve().parent / "recipes.json"
SAVED = STEPS - 3  # steps done in the state that is kept
COLUMNS = tuple(field.name for field in fields(RecordRow))
MISSING = """the golden records of a GPU are missing. On a machine with a CUDA card:
  python -m tests.golden.make_recipes --device cuda OUT/recipes.json
then copy recipes.json and recipes-*.safetensors.zst from OUT to tests/golden"""


@dataclass(frozen=True)
class Trained:
    """The records of a training: its recipe's digest, the root of state 0, a row for each step."""

    recipe: str
    state_0: str
    rows: tuple[RecordRow, ...]


@dataclass(frozen=True)
class Golden:
    """All trainings by the names of their recipes, and the device that made them."""

    device: str
    trained: dict[str, Trained]


def log_of(trained: Trained, recipe: Recipe) -> str:
    """Root of the log of the full records, in which the recipe's digest stands for the name of a run."""
    return log_root(
        expand(
            trained.rows,
            run_id=trained.recipe,
            numerics=recipe.numerics.version,
            micro_batches=recipe.batch.micro_batches,
            state0=trained.state_0,
        )
    )


def encode(golden: Golden) -> bytes:
    """The file: JSON with a line for each step, its columns in the order of the record's row."""
    lines = ["{", f' "device": {json.dumps(golden.device)},', f' "columns": {json.dumps(COLUMNS)},', ' "recipes": {']
    for name, trained in golden.trained.items():
        log = log_of(trained, RECIPES[name])
        lines += [f'  "{name}": {{', f'   "recipe": "{trained.recipe}",', f'   "state_0": "{trained.state_0}",']
        lines += [f'   "log": "{log}",', '   "steps": [']
        lines += [f"    {json.dumps(_texts(row))}," for row in trained.rows]
        lines[-1] = lines[-1][:-1]
        lines += ["   ]", "  },"]
    lines[-1] = "  }"
    return "\n".join([*lines, " }", "}", ""]).encode("ascii")


def _texts(row: RecordRow) -> list[str]:
    values = [getattr(row, column) for column in COLUMNS]
    return [value if isinstance(value, str) else f"f32:{value:08x}" for value in values]


def load(path: Path = FILE) -> Golden:
    """The records of a file. AssertionError when it is missing, or not what its logs' roots say."""
    assert path.is_file(), MISSING
    value = json.loads(path.read_text(encoding="ascii"))
    assert value["columns"] == list(COLUMNS)
    trained = {}
    for name, found in value["recipes"].items():
        table = tuple(RecordRow(*step[:4], *map(parse_f32_bits, step[4:])) for step in found["steps"])
        trained[name] = Trained(found["recipe"], found["state_0"], table)
        assert log_of(trained[name], RECIPES[name]) == found["log"], f"{name}: the log has another root"
    return Golden(value["device"], trained)


def first_difference(found: Sequence[RecordRow], golden: Sequence[RecordRow], first: int = 0) -> str:
    """In words, where rows of steps `first`, `first` + 1, .. part from the golden rows of all steps; "" when equal."""
    for number, row in enumerate(found, start=first):
        for column, got, want in zip(COLUMNS, _texts(row), _texts(golden[number]), strict=True):
            if got != want:
                return f"step {number}: {column} is {got}, golden {want}"
    return ""


def state_file(path: Path, name: str) -> Path:
    """Where the state of recipe `name` lies that belongs to the records in `path`."""
    return path.with_name(f"{path.stem}-{name}-{SAVED}.safetensors.zst")


def _header(recipe: Recipe) -> SafetensorsHeader:
    tensors = expected_tensors(recipe).items()
    return SafetensorsHeader.of((shard_key(role, name), "F32", shape) for (name, role), shape in tensors)


def write_state(path: Path, state: State, recipe: Recipe) -> None:
    """Write a state (NumPy arrays) as one zstd frame of a safetensors file."""
    arrays = {(name, role): array for name, role, array in state.tensors()}
    data = b"".join(little_endian(arrays[key]).tobytes() for key in expected_tensors(recipe))
    path.write_bytes(zstd.compress(_header(recipe).encode() + data, level=19))


def read_state(path: Path, recipe: Recipe) -> State:
    """The state of a file, after SAVED steps. AssertionError when it is missing, BadArtifact when it is another."""
    assert path.is_file(), MISSING
    header = _header(recipe)
    begin = len(header.encode())
    raw = zstd.decompress(path.read_bytes(), size=begin + header.data_size, what=path.name)
    assert SafetensorsHeader.parse(raw, len(raw)) == header
    roles: dict[str, dict[str, np.ndarray]] = {role: {} for role in ROLES}
    for (name, role), entry in zip(expected_tensors(recipe), header.tensors, strict=True):
        words = np.frombuffer(raw[begin + entry.begin : begin + entry.end], "<f4")
        roles[role][name] = words.reshape(entry.shape).astype(np.float32)
    return State(SAVED, roles["param"], roles["adam_m"], roles["adam_v"])


def train(backend: Backend, name: str, out: Path) -> Trained:
    """All steps of one recipe from its seed; its state before step SAVED is written beside `out`."""
    recipe = RECIPES[name]
    start, table = initial_state(recipe), []
    for row, state in rows(backend, recipe, start, STEPS):
        table.append(row)
        if state.step == SAVED:
            write_state(state_file(out, name), backend.host(state), recipe)
    return Trained(recipe.digest(), document(start, recipe).root(), tuple(table))


def _summary(name: str, trained: Trained, seconds: float) -> str:
    clip = RECIPES[name].optimizer.clip_norm
    losses = [f32_from_bits(row.loss) for row in trained.rows]
    clipped = sum(f32_from_bits(row.norm) > clip for row in trained.rows)
    log = log_of(trained, RECIPES[name])
    return f"{name:26} loss {losses[0]:.4f} to {losses[-1]:.4f}, {clipped:3} clipped, {seconds:5.1f} s, log {log}"


def compare(golden: Golden, other: Golden) -> bool:
    """Print where the two part, recipe by recipe; whether all records are equal."""
    equal = golden.trained.keys() == other.trained.keys()
    for name, trained in golden.trained.items():
        wanted = other.trained[name]
        difference = first_difference(trained.rows, wanted.rows)
        same = not difference and trained == wanted
        print(f"{name:26} {difference or ('equal' if same else 'another recipe or state 0')}")
        equal = equal and same
    count = sum(len(trained.rows) for trained in golden.trained.values())
    print(f"{count} records, {golden.device} and {other.device}: {'all equal' if equal else 'NOT equal'}")
    return equal


def main() -> int:
    """Train all recipes, write the file and the states, print a line for each recipe."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.make_recipes", description=__doc__)
    parser.add_argument("--device", required=True, help="cpu, cuda or cuda:N")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare all records with those of this file")
    parser.add_argument("out", type=Path, metavar="OUT.json")
    arguments = parser.parse_args()
    out: Path = arguments.out
    backend = choose(arguments.device, 1)  # more threads cost more than they gain at these sizes
    if backend.device == "cpu" and out.resolve() == FILE:
        parser.error("the golden records are made on a GPU")
    backend.self_test()
    out.parent.mkdir(parents=True, exist_ok=True)
    trained = {}
    for name in RECIPES:
        began = time.perf_counter()
        trained[name] = train(backend, name, out)
        print(_summary(name, trained[name], time.perf_counter() - began), flush=True)
    golden = Golden(backend.device, trained)
    out.write_bytes(encode(golden))
    print(f"wrote {out} and {len(trained)} states, made by {backend.device}")
    return 0 if arguments.compare is None or compare(golden, load(arguments.compare)) else 1


if __name__ == "__main__":
    sys.exit(main())
