"""All of `auditkit bench`: what it reports follows from what it measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from auditkit.errors import Unavailable, Unsupported, UsageError
from auditkit.formats.recipe import Recipe
from auditkit.measure import bench as measuring
from auditkit.measure import models, rates
from auditkit.measure.bench import Options, bench
from auditkit.measure.torch_times import Asked, TorchTimes
from auditkit.replay.backend import Backend
from auditkit.store.progress import Silent


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, recipe: Recipe) -> None:
    monkeypatch.setitem(models.MODELS, "small", (recipe.model, 3, 1))
    monkeypatch.setattr(rates, "SIZES", {True: (1 << 12, 64), False: (1 << 12, 64)})
    monkeypatch.setattr(rates, "UNPACKED", 1 << 16)


class Counted(Silent):
    """Progress that is added up."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self.open = False

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        self.total, self.open = total, True

    def advance(self, n: int) -> None:
        self.done += n

    def finish(self) -> None:
        self.open = False


def test_a_report_adds_up(backend: Backend) -> None:
    progress = Counted()
    found = bench(Options("small", rounds=1, torch=False, ops=True), backend, progress)
    assert found.step == pytest.approx(
        found.times.prepare + 3 * found.times.micro_batch + found.times.update + found.times.digest
    )
    assert found.audit > found.step > 0
    assert found.least > 0
    assert found.missing == ("torch was not asked",)
    assert found.lines
    value = json.loads(json.dumps(found.to_dict()))
    assert (value["format"], value["model"], value["tokens"]) == ("auditkit/bench/v1", "small", 24)
    assert value["ops"]
    assert (progress.done, progress.open) == (progress.total, False)


def test_torch_stands_beside_or_says_why_not(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Asked] = []

    def measure(one: Asked) -> tuple[TorchTimes, str]:
        asked.append(one)
        if len(asked) == 1:
            raise Unavailable("no memory")
        return TorchTimes(one.kind, "words", "2.0", 1.0, 1.0, 1.0, None), "not compiled: no compiler"

    monkeypatch.setattr(measuring, "installed", lambda: True)
    monkeypatch.setattr(measuring, "measure_any", measure)
    monkeypatch.setattr(measuring, "KINDS", dict.fromkeys((True, False), (("bfloat16", "whole"), ("float32", "off"))))
    found = bench(Options("small", rounds=1), backend, Silent())
    assert [(one.model, one.kind) for one in asked] == [("small", "bfloat16"), ("small", "float32")]
    assert found.missing == ("torch bfloat16: no memory", "torch float32 not compiled: no compiler")
    assert found.ratio(found.torch[0]) == pytest.approx(found.step / 4.0)
    (beside,) = found.to_dict()["torch"]  # type: ignore[misc]
    assert beside["step"] == 4.0


@pytest.mark.parametrize("options", [Options("nothing"), Options("small", 4), Options("small", rounds=0)])
def test_what_there_is_not_is_a_usage_error(backend: Backend, options: Options) -> None:
    with pytest.raises(UsageError):
        bench(options, backend, Silent())


def test_a_model_that_does_not_fit_is_unsupported(backend: Backend) -> None:
    with pytest.raises(Unsupported, match="at least"):
        bench(Options("small", memory=1000, torch=False), backend, Silent())


def test_a_device_that_fails_its_self_test_is_not_measured(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    from auditkit.errors import MachineFault

    def fails(self: Backend) -> None:
        raise MachineFault("wrong")

    monkeypatch.setattr(type(backend), "self_test", fails)
    with pytest.raises(MachineFault):
        bench(Options("small", torch=False), backend, Silent())


def test_defaults_are_a_model_for_the_device() -> None:
    assert measuring.ON_CPU in models.MODELS
    assert replace(Options(), model=measuring.DEFAULT).model in models.MODELS
