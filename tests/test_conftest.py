"""The guards of the test suite themselves: no network, and no skipped test in CI."""

from __future__ import annotations

import socket
import subprocess
import sys

import numpy as np
import pytest

from auditkit.errors import MachineFault
from auditkit.numerics import exact_dot, reference
from auditkit.replay.backend import Backend
from tests.conftest import ROOT
from tests.ops import float_env
from tests.plugins import known_answers
from tests.plugins.longest import LONGEST, place

LEAVE = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
PLUGIN = ("-p", "tests.plugins.required", "-p", "no:cacheprovider")


@pytest.mark.parametrize("host", ["192.0.2.1", "example.invalid", "0.0.0.0"])
def test_no_connection_leaves_this_machine(host: str) -> None:
    with pytest.raises(RuntimeError, match="tests may reach 127.0.0.1 only"):
        socket.create_connection((host, 80), timeout=1)


def test_no_datagram_leaves_this_machine() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        pytest.raises(RuntimeError, match="tests may reach 127.0.0.1 only"),
    ):
        sender.sendto(b"x", ("192.0.2.1", 9))


def test_a_started_python_is_guarded_too() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 1
    assert "NetworkBlocked: tests may reach 127.0.0.1 only" in done.stderr


def test_this_machine_is_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname(), timeout=5) as client:
            client.sendall(b"x")
            assert server.accept()[0].recv(1) == b"x"


SKIPS = """
import pytest

def test_skips():
    pytest.skip("no tool")

@pytest.mark.skipif(True, reason="never here")
def test_skipped_by_mark():
    pass

@pytest.mark.optional("the other test covers it")
def test_may_skip():
    pytest.skip("no other tool")

def test_runs():
    pass
"""


def test_a_required_test_that_is_skipped_fails_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makeini("[pytest]\nmarkers = optional(reason): x")
    pytester.makepyfile(SKIPS)
    result = pytester.runpytest(*PLUGIN)
    result.assert_outcomes(failed=1, errors=1, skipped=1, passed=1)
    result.stdout.fnmatch_lines(["*a required test was skipped in CI: *no tool*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_outside_ci_a_skip_is_a_skip(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    pytester.makeini("[pytest]\nmarkers = optional(reason): x")
    pytester.makepyfile(SKIPS)
    pytester.runpytest(*PLUGIN).assert_outcomes(skipped=3, passed=1)


def test_a_skipped_module_fails_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile("import pytest\npytest.importorskip('no_such_package_here')\n\ndef test_x():\n    pass\n")
    result = pytester.runpytest(*PLUGIN)
    result.stdout.fnmatch_lines(["*a required test was skipped in CI: *no_such_package_here*"])
    assert result.ret != pytest.ExitCode.OK


def test_optional_needs_a_reason(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = optional(reason): x")
    pytester.makepyfile("import pytest\n\n@pytest.mark.optional()\ndef test_x():\n    pass\n")
    result = pytester.runpytest(*PLUGIN)
    result.stderr.fnmatch_lines(["*optional needs a reason*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_the_longest_files_begin_first() -> None:
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
    files = ["a", "b", "b", LONGEST[1], LONGEST[0], LONGEST[1]]
    places = place(files)
    assert sorted(places, key=lambda name: places[name]) == [LONGEST[0], LONGEST[1], "b", "a"]


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> list[known_answers.Remembered]:
    """The checks of known answers, as in a folder where they are remembered."""
    assert len(known_answers.REMEMBERED) == 2
    for check in known_answers.REMEMBERED:
        monkeypatch.setattr(check, "active", True)
    return known_answers.REMEMBERED


def test_known_answers_are_computed_once_for_the_same_functions(remembered: list[known_answers.Remembered]) -> None:
    backend = Backend(reference, 2, "cpu")
    backend.self_test()
    before = [check.calls for check in remembered]
    backend.self_test()
    assert [check.calls for check in remembered] == before


def test_known_answers_of_a_function_that_was_replaced_are_computed(
    remembered: list[known_answers.Remembered], monkeypatch: pytest.MonkeyPatch
) -> None:
    Backend(reference, 2, "cpu").self_test()
    for module, name in ((reference, "dot"), (exact_dot, "round_sum")):
        with monkeypatch.context() as lie:
            right = getattr(module, name)
            lie.setattr(module, name, lambda *x, right=right, **more: right(*x, **more) + np.float32(2**-20))
            with pytest.raises(MachineFault, match="answer of"):
                Backend(reference, 2, "cpu").self_test()


def test_the_arithmetic_is_tested_every_time(remembered: list[known_answers.Remembered]) -> None:
    Backend(reference, 2, "cpu").self_test()
    with float_env.rounding(float_env.UP), pytest.raises(MachineFault):
        Backend(reference, 2, "cpu").self_test()


def test_other_ops_and_other_folders_compute_them() -> None:
    assert not any(check.active for check in known_answers.REMEMBERED)
    before = [check.calls for check in known_answers.REMEMBERED]
    Backend(reference, 1, "cpu").self_test()
    Backend(reference, 1, "cpu").self_test()
    assert all(check.calls > first for check, first in zip(known_answers.REMEMBERED, before, strict=True))
    assert known_answers.applies(ROOT / "tests" / "audit" / "test_attest.py")
    for folder in ("ops", "kernels", "native", "faults", "measure", "model"):
        assert not known_answers.applies(ROOT / "tests" / folder / "test_x.py")
