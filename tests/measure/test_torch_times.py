"""Torch beside: its own process, whose failures are one line; and, where torch is, its real times."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from auditkit.errors import Unavailable
from auditkit.measure import torch_times
from auditkit.measure.torch_times import Asked, TorchTimes, measure_any, measure_torch

ASKED = Asked("tiny", 1, "float32", "off", "cpu", 1, repeats=1)


def said(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let another Python process stand where torch's would."""
    monkeypatch.setattr(torch_times, "installed", lambda: True)
    monkeypatch.setattr(Asked, "command", lambda self: [sys.executable, "-c", code])


def test_a_step_is_its_micro_batches_and_an_update() -> None:
    assert TorchTimes("float32", "", "2", 0.5, 0.25, 1.0, None).step(4) == 2.25


def test_where_torch_is_not_installed_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_times, "installed", lambda: False)
    with pytest.raises(Unavailable, match="not installed"):
        measure_torch(ASKED)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit('out of memory')", "code 1: out of memory"),
        ("print('no json')", "no times"),
        ("print('{}')", "no times"),
        ("pass", "no times"),
    ],
)
def test_what_fails_there_is_one_line_here(monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    said(monkeypatch, code)
    with pytest.raises(Unavailable, match=words) as caught:
        measure_torch(ASKED)
    assert "\n" not in caught.value.message


def test_what_cannot_be_compiled_is_measured_without(monkeypatch: pytest.MonkeyPatch) -> None:
    times, tried = TorchTimes("float32", "", "2", 0.5, 0.25, 1.0, None), []

    def measure(asked: Asked, timeout: float) -> TorchTimes:
        tried.append(asked.compiled)
        if asked.compiled != "off" or asked.kind == "bfloat16":
            raise Unavailable("no compiler")
        return times

    monkeypatch.setattr(torch_times, "measure_torch", measure)
    assert measure_any(replace(ASKED, compiled="whole")) == (times, "not compiled: no compiler")
    assert tried == ["whole", "off"]
    with pytest.raises(Unavailable):
        measure_any(replace(ASKED, kind="bfloat16", compiled="layer"))
    assert measure_any(ASKED) == (times, "")


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    said(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(Unavailable, match="not done after 1 s"):
        measure_torch(ASKED, timeout=1.0)


def test_a_process_that_cannot_start_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_times, "installed", lambda: True)
    monkeypatch.setattr(Asked, "command", lambda self: ["/nothing/python"])
    with pytest.raises(Unavailable, match="could not be started"):
        measure_torch(ASKED)


def test_this_process_does_not_load_torch() -> None:
    code = "import sys, auditkit.measure.bench; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.optional("torch is an extra; where it is installed its real step is timed")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast"])
def test_the_real_torch_gives_times(kind: str) -> None:
    pytest.importorskip("torch")
    found = measure_torch(Asked("tiny", 1, kind, "off", "cpu", 1, repeats=1))
    assert found.kind == kind
    assert found.micro_batch > 0


@pytest.mark.optional("torch is an extra")
def test_bfloat16_weights_follow_their_float32_masters() -> None:
    torch: Any = pytest.importorskip("torch")
    from auditkit.measure.models import recipe_of
    from auditkit.measure.torch_side import make

    recipe = recipe_of("tiny", 2)
    torch.manual_seed(0)
    side = make(recipe, "bfloat16", "off", torch.device("cpu"))
    tokens = torch.randint(recipe.model.vocab_size, (2, recipe.model.context_length + 1))
    before = {name: p.detach().clone() for name, p in side.masters.items()}
    side.micro_batch(tokens, 0.5)
    once = {name: p.grad.clone() for name, p in side.masters.items()}
    side.micro_batch(tokens, 0.5)
    assert all(torch.equal(p.grad, 2 * once[name]) for name, p in side.masters.items())
    side.update()
    assert any(not torch.equal(p.detach(), before[name]) for name, p in side.masters.items())
    assert all(torch.equal(side.weights[name], p.detach().bfloat16()) for name, p in side.masters.items())


@pytest.mark.optional("torch is an extra")
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_layer_by_layer_is_the_same_loss(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler, which is torch's own business: the pieces put together are the whole."""
    torch: Any = pytest.importorskip("torch")
    from auditkit.measure.models import recipe_of
    from auditkit.measure.torch_side import KINDS, loss_of, make

    monkeypatch.setattr(torch, "compile", lambda function: function)
    recipe = recipe_of("tiny", 2)
    torch.manual_seed(0)
    side = make(recipe, kind, "off", torch.device("cpu"))
    tokens = torch.randint(recipe.model.vocab_size, (2, recipe.model.context_length + 1))
    found = [loss_of(recipe, way, torch.device("cpu"))(side.weights, tokens) for way in ("off", "whole", "layer")]
    assert KINDS[kind][0] == next(iter(side.weights.values())).dtype
    assert found[0] == found[1] == found[2]
