"""The C ops as a back end: known answers, whole steps, and the reference where they are not to be believed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MachineFault, Unsupported
from auditkit.formats.digest import content_digest
from auditkit.model.ops import Ops
from auditkit.model.state import initial_state
from auditkit.native import compile as compiling
from auditkit.native.compile import FOLDER, find, make, sources
from auditkit.native.ops import NativeOps, load
from auditkit.numerics import reference, self_test
from auditkit.replay import backend as backends
from auditkit.replay.backend import NativeBackend, choose
from tests.golden.recipes import RECIPES
from tests.ops.float_env import DOWN, TOWARDS_ZERO, UP, flush_to_zero, rounding


def test_known_answers_of_every_op(native: NativeOps) -> None:
    self_test.run(native)


def test_all_that_is_in_c_is_an_op_of_the_reference(native: NativeOps) -> None:
    assert set(native._own) < set(reference.__all__) and native.name == "native"
    assert native.adamw is reference.adamw
    with pytest.raises(AttributeError):
        getattr(native, "no_such_op")  # noqa: B009 - mypy knows that there is none


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("threads", [1, 3])
def test_steps_are_the_references(compiled: Path, name: str, threads: int) -> None:
    recipe = RECIPES[name]
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    tokens = np.random.default_rng(0).integers(0, recipe.model.vocab_size, shape)
    sides = [choose("numpy", threads), NativeBackend(NativeOps(compiled), threads, "cpu")]  # type: ignore[arg-type]
    states = [initial_state(recipe)] * 2
    for _ in range(3):
        made = [side.step(state, tokens, recipe) for side, state in zip(sides, states, strict=True)]
        assert made[0][1] == made[1][1]
        states = [state for state, _ in made]


def one_step(backend: NativeBackend) -> None:
    recipe = RECIPES[min(RECIPES)]
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    backend.step(initial_state(recipe), np.zeros(shape, np.int64), recipe)


def test_a_second_replay_is_the_references(compiled: Path) -> None:
    ops = NativeOps(compiled)
    found = NativeBackend(ops, 1, "cpu")  # type: ignore[arg-type]
    assert found.describe()["ops"].endswith(ops.origin)
    one_step(found)
    found.forget()
    assert ops.dot is reference.dot and ops.name == "numpy"
    for _ in range(2):
        assert found.describe() == {"ops": f"NumPy; in the first replay C, library {ops.origin}"}
        found.forget()


@pytest.mark.parametrize("computed", [True, False])
def test_a_report_names_c_where_a_replay_was_by_it(compiled: Path, computed: bool) -> None:
    """Also where it fails its self-test only before the second replay, and not where nothing was computed by it."""
    ops = NativeOps(compiled)
    found = NativeBackend(ops, 1, "cpu")  # type: ignore[arg-type]
    if computed:
        one_step(found)
    ops._own["add"] = lambda x, y: reference.add(x, -y)
    found.self_test()
    one_step(found)
    assert found.describe() == ({"ops": f"NumPy; in the first replay C, library {ops.origin}"} if computed else {})


def test_ops_that_fail_their_self_test_are_done_without(compiled: Path) -> None:
    ops = NativeOps(compiled)
    ops._own["add"] = lambda x, y: reference.add(x, -y)
    with pytest.raises(MachineFault, match="known answer of add"):
        self_test.run(ops)
    NativeBackend(ops, 2, "cpu").self_test()  # type: ignore[arg-type]
    assert ops.add is reference.add and ops.quantise is reference.quantise


def test_ops_that_fail_for_longer_rows_alone_are_done_without(compiled: Path) -> None:
    ops = NativeOps(compiled)
    quantise = ops._own["quantise"]
    ops._own["quantise"] = lambda x, bits: quantise(x if x.shape[-1] < 9000 else x + x, bits)
    self_test.run(ops)
    NativeBackend(ops, 1, "cpu").self_test()  # type: ignore[arg-type]
    assert ops.quantise is reference.quantise


@pytest.mark.parametrize("changed", [flush_to_zero, *(partial(rounding, mode) for mode in (UP, DOWN, TOWARDS_ZERO))])
def test_a_thread_that_rounds_otherwise_is_found(native: NativeOps, changed: Callable[[], Any]) -> None:
    """Also a thread of a pool, in which no self-test runs."""
    x = np.ones((2, 16), np.float32)
    with ThreadPoolExecutor(1) as pool:

        def there() -> None:
            with changed():
                native.quantise(x, 14)

        with pytest.raises(MachineFault, match="quantise: this thread rounds otherwise"):
            pool.submit(there).result()
        pool.submit(native.quantise, x, 14).result()


def test_who_asks_for_them_is_told_that_they_fail(compiled: Path) -> None:
    ops = NativeOps(compiled)
    ops._own["add"] = lambda x, y: reference.add(x, x)
    with pytest.raises(MachineFault):
        NativeBackend(ops, 1, "cpu", strict=True).self_test()  # type: ignore[arg-type]
    assert ops.name == "native"


def put(cache: Path, name: str, data: bytes) -> Path:
    """A library in a cache of this user's own."""
    folder = cache / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    path.chmod(0o700)
    return path


def test_the_cpu_takes_what_is_compiled(tmp_path: Path, compiled: Path) -> None:
    assert choose("cpu", 1, cache=tmp_path).ops is reference
    put(tmp_path, compiled.name, compiled.read_bytes())
    for device in ("cpu", "native"):
        found = choose(device, 1, cache=tmp_path)
        assert found.ops.name == "native" and found.device == "cpu"
    assert choose("numpy", 1, cache=tmp_path).ops is reference


def test_a_changed_library_is_not_used(tmp_path: Path, compiled: Path) -> None:
    put(tmp_path, compiled.name, compiled.read_bytes() + b"\0")
    assert find(tmp_path) is None and load(tmp_path, compile_it=False) is None


def test_what_others_could_have_put_there_is_not_loaded(tmp_path: Path, compiled: Path) -> None:
    """Its code would run before anything could judge it."""
    path = put(tmp_path, compiled.name, compiled.read_bytes())
    assert find(tmp_path) == path
    for changed in (path, path.parent):
        changed.chmod(0o722)
        assert find(tmp_path) is None and choose("cpu", 1, cache=tmp_path).ops is reference
        changed.chmod(0o700)
    kept = path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(kept)
    assert find(tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert find(tmp_path) is None


def test_where_others_can_write_it_is_compiled_elsewhere(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER).chmod(0o777)
    made = make(tmp_path)
    assert not made.is_relative_to(tmp_path) and not list((tmp_path / FOLDER).iterdir())
    shutil.rmtree(made.parent)


def test_a_cache_that_takes_nothing_is_done_without(compiled: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"no folder")
    made = make(tmp_path / "cache")
    assert tmp_path not in made.parents and made.exists()
    shutil.rmtree(made.parent)


def test_a_library_that_does_not_load_is_compiled_anew(tmp_path: Path, compiled: Path) -> None:
    data = b"no library"
    put(tmp_path, f"{compiled.name.split('-')[0]}-{content_digest(data)}.so", data)
    assert choose("cpu", 1, cache=tmp_path).ops is reference
    assert load(tmp_path, compile_it=True) is not None
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [compiled.name]


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(Unsupported, match="no C compiler"):
        choose("native", 1, cache=tmp_path)
    assert choose("cpu", 1, cache=tmp_path).ops is reference


def test_a_compiler_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "sources", lambda: (*sources(), ("broken.c", b"int broken(")))
    with pytest.raises(Unsupported, match="cannot compile the C ops: broken.c"):
        make(tmp_path)
    assert not list((tmp_path / FOLDER).iterdir())


def test_another_kind_of_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.platform, "machine", lambda: "arm64")
    assert find(tmp_path) is None
    with pytest.raises(Unsupported, match="x86-64"):
        make(tmp_path)


def test_nothing_in_the_interface_is_missing(native: NativeOps) -> None:
    names = {name for name in vars(Ops) if not name.startswith("_")} | set(Ops.__annotations__)
    assert not {name for name in names if not hasattr(native, name)}


def test_backends_are_named_where_devices_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends.PROCESSOR == ("cpu", "native", "numpy")
