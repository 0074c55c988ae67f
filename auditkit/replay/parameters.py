"""The parameters of a published state without its moments: what the gradients of a step are computed from.

The state document, whose root the records have, gives the digest of every tensor. So each parameter is proven by
itself, and the moments, two thirds of a state, are neither fetched nor held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from auditkit.errors import BadArtifact, MachineFault
from auditkit.formats.digest import Digest
from auditkit.formats.state import FrameEntry, ShardEntry, StateIndex
from auditkit.formats.tensors import tensor_digest
from auditkit.model.ops import Ops
from auditkit.model.params import init_params, parameter_table
from auditkit.model.state import State, document_of
from auditkit.replay.boundary import entered
from auditkit.replay.machine import HINT
from auditkit.replay.published import open_state
from auditkit.replay.run import Run
from auditkit.replay.start import start_state


@dataclass(frozen=True)
class Parameters:
    """A state whose moments are left out, the digests of its parameters by name, and how they were proven, in words."""

    state: State
    digests: Mapping[str, Digest]
    detail: str


def parameters(run: Run, step: int) -> Parameters:
    """The parameters of published state `step`, each checked against the document whose root the records have.

    Those of state 0 follow from the seed, and nothing is fetched. Raises Unavailable, BadArtifact, Unsupported; for a
    state 0 that the seed does not give, SeedMismatch, MachineFault.
    """
    return _published(run, step) if step else _from_seed(run)


def _published(run: Run, step: int) -> Parameters:
    opened = open_state(run, step)
    root, recorded = opened.document.root(), run.state_before(step)
    if root != recorded:
        raise BadArtifact(f"state {step} has root {root}, the records say {recorded}")
    segment = run.timeline.begun(step)
    if segment is not None:
        root = entered(run, opened.document, segment, run.record(step).state_before)
    names = [spec.name for spec in parameter_table(run.recipe.model)]
    params = {name: np.asarray(opened.tensor(("param", name)), dtype=np.float32) for name in names}
    digests = {entry.name: entry.digest for entry in opened.document.tensors if entry.role == "param"}
    fetched, whole = frame_bytes(opened.index)
    detail = f"{root}, published; of its tensors the {len(names)} parameters, {fetched:,} of {whole:,} bytes"
    return Parameters(State(step, params, {}, {}), digests, detail)


def _from_seed(run: Run) -> Parameters:
    params = init_params(run.recipe)
    digests = {name: tensor_digest(array) for name, array in params.items()}
    zeros = {shape: tensor_digest(np.zeros(shape, np.float32)) for shape in {p.shape for p in params.values()}}
    found = {("param", name): digest for name, digest in digests.items()}
    found |= {(role, name): zeros[array.shape] for role in ("adam_m", "adam_v") for name, array in params.items()}
    root = document_of(0, run.recipe, found).root()
    if root != run.state_before(0):
        start_state(run, 0)  # looks for what differs, and raises
        raise MachineFault("state 0 followed from the seed only the second time", hint=HINT)
    detail = f"{root}, derived from the seed alone; nothing of the state was fetched"
    return Parameters(State(0, params, {}, {}), digests, detail)


def of_state(state: State, detail: str) -> Parameters:
    """The parameters of a whole state that was computed here, on the host, hashed as they are."""
    params = {name: np.asarray(state.params[name], dtype=np.float32) for name in state.params}
    digests = {name: tensor_digest(array) for name, array in params.items()}
    return Parameters(State(state.step, params, {}, {}), digests, detail)


def held(parameters: Parameters, state: State, ops: Ops) -> None:
    """Hash the arrays of `state`, which were loaded from `parameters`. MachineFault: they changed in memory."""
    names = list(state.params)
    for name, found in zip(names, ops.digests([state.params[name] for name in names]), strict=True):
        if found != parameters.digests[name]:
            message = f"parameter {name} changed in memory while it was in use: {parameters.digests[name]} is {found}"
            raise MachineFault(message, hint=HINT)


def frame_bytes(index: StateIndex) -> tuple[int, int]:
    """Bytes of the frames of the parameters, and of all shards."""
    return sum(frame.length for _, frame in parameter_frames(index)), sum(shard.size for shard in index.files)


def parameter_frames(index: StateIndex) -> list[tuple[ShardEntry, FrameEntry]]:
    """Shard and frame of each parameter."""
    return [(shard, frame) for shard in index.files for frame in shard.frames if frame.role == "param"]
