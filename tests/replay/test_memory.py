"""What a step needs by the formula, against what it takes; a subprocess each, for memory is a matter of a process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# A model of 9 million parameters: what a plan should need and the most that was held, in a process of its own.
PROGRAM = """
import json, sys, tempfile
from dataclasses import replace
from pathlib import Path
import numpy as np
from auditkit.model.params import parameter_table
from auditkit.model.plan import Cuts, Plan
from auditkit.model.state import initial_state, seeded_state, state_digests
from auditkit.replay.backend import choose
from auditkit.replay.confirm import copied_in
from auditkit.replay.layout import Layout
from auditkit.replay.memory import piece_bytes, plain_bytes
from auditkit.replay.sizes import sizes_of
from auditkit.replay.planned import Planned
from tests.peak_memory import peak_bytes
from tests.replay.make_run import RECIPE

model = replace(RECIPE.model, vocab_size=8192, hidden_size=384, num_layers=4, num_heads=6, num_kv_heads=2, head_dim=64,
                ffn_size=1024, context_length=128, tied_head=False)
recipe = replace(RECIPE, model=model, batch=replace(RECIPE.batch, sequences=4, micro_batch_sequences=1))
plan = eval(sys.argv[1])
need = piece_bytes(recipe, plan, False) if plan.pieces else plain_bytes(recipe, plan.workers, False)
files = sizes_of(recipe, False).reading if plan.pieces else 0  # no state is read here
backend = choose("cpu", plan.workers)
with tempfile.TemporaryDirectory() as folder:
    shapes = {spec.name: spec.shape for spec in parameter_table(model)}
    planned = Planned(backend.ops, plan.workers, "cpu", inner=backend, layout=Layout(plan, need), shapes=shapes,
                      cache=lambda: Path(folder))
    first = planned.place(seeded_state(recipe) if plan.pieces else initial_state(recipe))
    state = copied_in(planned, first)  # as in the replay before a mismatch, which the plan must have room for as well
    tokens = np.random.default_rng(1).integers(0, 8192, (4, 129))
    new, result = planned.step(state, tokens, recipe)
    root = state_digests(new, recipe).root(1)
    del first, state, new
    print(json.dumps([peak_bytes(), need.memory - files, root, result.gradient]))
"""
PLANS = (
    "Plan()",
    "Plan(workers=2)",
    "Plan(True)",
    "Plan(True, group=4, recompute=True, cuts=Cuts(64, 2048))",
    'Plan(True, group=2, recompute=True, keep=("attention", "mid"), logits_once=True, cuts=Cuts(64, 2048))',
    'Plan(True, group=2, recompute=True, cuts=Cuts(16, 512), params="disk", sums="disk", inputs="disk")',
)


@pytest.mark.skipif(sys.platform == "win32", reason="the resource module says what the peak was")
@pytest.mark.optional("Windows has no resource module")
def test_needs_are_of_the_right_size() -> None:
    """Never less than what was taken, and not much more; the leanest plan takes a third of the plain way's."""
    found = []
    for plan in PLANS:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, plan],
            capture_output=True,
            encoding="utf-8",
            cwd=ROOT,
            timeout=300,
            check=True,
        )
        found.append(json.loads(done.stdout))
    for plan, (peak, need, root, gradient) in zip(PLANS, found, strict=True):
        assert 1 <= need / peak < 2, f"{plan}: {need:,} for {peak:,}"
        assert [root, gradient] == found[0][2:]
    assert found[-1][0] < found[0][0] / 3
