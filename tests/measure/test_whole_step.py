"""The bench of a whole step: all parts run on a CPU as on a card, a failing one loses none, digests are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from auditkit.formats.recipe import Recipe
from auditkit.measure import models, rates
from bench import step_bits, whole_step
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.on_devices import EMULATOR_MARKS


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, recipe: Recipe) -> None:
    monkeypatch.setitem(models.MODELS, "tiny", (recipe.model, 3, 1))
    monkeypatch.setattr(rates, "SIZES", {True: (1 << 12, 64), False: (1 << 12, 64)})
    monkeypatch.setattr(rates, "UNPACKED", 1 << 16)
    monkeypatch.setattr(step_bits, "reduced", lambda recipe: recipe)


def run(tmp_path: Path, device: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "found.json"
    code = whole_step.main(["--model", "tiny", "--device", device, "--threads", "1", *arguments, "--json", str(file)])
    return code, json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=EMULATOR_MARKS)])
def test_all_parts_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    if device == "cuda":
        fake_cupy.install(monkeypatch, Cuda())
    code, found = run(tmp_path, device, "--rounds", "1", "rates", "check", "parts", "profile")
    assert (code, found["failed"]) == (0, [])
    assert len(found["check"]) == (4 if device == "cuda" else 1)
    assert all(one["same"] for one in found["check"])
    assert found["times"]["step"] > 0
    assert found["profile"]["ops"]


def test_a_part_that_fails_is_told_and_loses_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(whole_step, "measure_rates", fails)
    code, found = run(tmp_path, "cpu", "rates", "parts")
    assert (code, found["failed"]) == (1, ["rates"])
    assert found["times"]["micro_batch"] > 0


def test_other_bits_fail_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = step_bits.step
    monkeypatch.setattr(step_bits, "step", lambda state, given, *rest, **more: real(state, given[::-1], *rest, **more))
    code, found = run(tmp_path, "cpu", "check")
    assert (code, found["failed"]) == (1, ["check"])
    assert [one["same"] for one in found["check"]] == [False]


def test_a_whole_step_is_compared_with_an_earlier_one(tmp_path: Path) -> None:
    written = tmp_path / "digests.json"
    code, found = run(tmp_path, "cpu", "--whole", "--write", str(written))
    assert code == 0
    assert found["whole"]["seconds"] > 0
    assert run(tmp_path, "cpu", "--whole", "--expect", str(written))[0] == 0
    other = json.loads(written.read_text(encoding="utf-8")) | {"gradient": "0" * 64}
    written.write_text(json.dumps(other), encoding="utf-8")
    code, found = run(tmp_path, "cpu", "--whole", "--expect", str(written))
    assert (code, found["failed"]) == (1, ["whole step"])


def test_less_memory_gives_the_same_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from auditkit.measure import subject
    from auditkit.model.plan import Cuts, Plan
    from auditkit.replay.layout import Layout
    from auditkit.replay.memory import piece_bytes

    written = tmp_path / "digests.json"
    assert run(tmp_path, "cpu", "--whole", "--write", str(written))[0] == 0
    plan = Plan(True, group=2, recompute=True, cuts=Cuts(4), params="disk", sums="disk", inputs="disk")
    monkeypatch.setattr(
        subject, "choose_layout", lambda recipes, *_, **__: Layout(plan, piece_bytes(recipes[0], plan, False))
    )
    assert run(tmp_path, "cpu", "--whole", "--expect", str(written))[0] == 0
