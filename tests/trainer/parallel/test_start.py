"""Ranks that cannot meet say so, soon and each for itself: a port that is taken, an interface that is not there."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

import pytest

from auditkit.errors import AuditkitError, Unavailable, Unsupported
from auditkit.verdict import Verdict
from tests.trainer import tiny
from tests.trainer.parallel.conftest import free_port
from trainer.parallel.place import Place

pytest.importorskip("torch", reason="torch is not installed")


def ranks(work: Path, count: int, port: int, **more: str) -> list[tuple[int, str]]:
    """Exit code and story of each rank, started as torchrun starts it, the store with rank 0."""
    children = []
    for rank in range(count):
        names = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        chosen = {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"} | more
        children.append(tiny.start_child(tiny.run_arguments(work), before=f"import os; os.environ.update({chosen})"))
    stories = [child.communicate(timeout=tiny.SECONDS)[1] for child in children]
    return [(child.returncode, story) for child, story in zip(children, stories, strict=True)]


def test_a_port_that_is_taken_is_named(prepared: Path) -> None:
    """As where two trainings begin on one host."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ((code, story),) = ranks(prepared, 1, port)
    assert code == Verdict.UNSUPPORTED.code, story
    assert f"error: rank 0: the ranks cannot meet at 127.0.0.1:{port}: " in story and "hint: " in story
    assert "Traceback" not in story
    assert not (prepared / "recipe.json").exists()


def test_an_interface_that_is_not_there_ends_all_ranks(prepared: Path) -> None:
    found = ranks(prepared, 2, free_port(), GLOO_SOCKET_IFNAME="nope0")
    assert {code for code, _ in found} == {Verdict.UNSUPPORTED.code}, found
    told = "".join(story for _, story in found)
    assert "the ranks do not reach each other: " in told and "Traceback" not in told
    assert not (prepared / "recipe.json").exists()


class Alone:
    """A watch that finds nobody missing."""

    def meet(self) -> None: ...

    def search(self) -> None: ...


@pytest.mark.parametrize(
    ("said", "kind"),
    [("timed out connecting: SO_ERROR: Connection refused", Unavailable), ("Unable to find address", Unsupported)],
)
def test_a_rank_that_refuses_may_have_ended(
    monkeypatch: pytest.MonkeyPatch, said: str, kind: type[AuditkitError]
) -> None:
    """Killed while they connect, it may show no silence in time; but it is no fault of this machine."""

    def fails(*given: Any, **more: Any) -> None:
        raise RuntimeError(said)

    from trainer.parallel import torch_group

    monkeypatch.setattr(torch_group.dist, "init_process_group", fails)
    place = Place(0, 2, 0, 2, "127.0.0.1", 1, True, "test")
    with pytest.raises(kind, match="the ranks do not reach each other: "):
        torch_group.open_group(place, cast(Any, Alone()), torch_group.dist.HashStore())
