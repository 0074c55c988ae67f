"""The edges of the command line: pipes, closed and full streams, encodings, signals, internal errors, start-up time."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from auditkit.cli import main as module
from auditkit.cli.interrupt import Signals
from auditkit.verdict import Verdict
from tests.cli.conftest import Cli, environment
from tests.conftest import ROOT

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell and signals")
POSIX_OPTIONAL = pytest.mark.optional("POSIX only: Windows has no /dev/full, closed descriptors or SIGTERM delivery")


def shell(command: str, tmp_path: Path, run: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of sh in which $A is the program and $RUN an honest run."""
    return subprocess.run(
        ["sh", "-c", command.replace("$A", f"{shlex.quote(sys.executable)} -m auditkit")],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        env=environment(tmp_path / "cache", {"RUN": str(run), **env}),
        check=False,
    )


@pytest.mark.parametrize(
    "extra",
    [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"FORCE_COLOR": "1"}, {"PYTHONWARNINGS": "always", "PYTHONDEVMODE": "1"}],
)
def test_stdout_is_one_json_object_without_escapes(cli: Cli, honest: Path, extra: dict[str, str]) -> None:
    """Case 53."""
    done = cli("verify", "--run", honest, "--step", 0, "--json", env=extra)
    assert json.loads(done.stdout)["verdict"] == "MATCH"
    assert done.stdout.count("\n") == 1
    assert "\x1b" not in done.stdout + done.stderr


def test_json_of_every_failure_is_one_object(main: Cli, honest: Path) -> None:
    for arguments, verdict in (
        (["verify", "--run", honest, "--step", 99], "USAGE"),
        (["verify", "--run", "http://127.0.0.1:9/x", "--step", 0, "--offline"], "UNAVAILABLE"),
        (["verify", "--run", honest, "--step", 0, "--device", "cuda"], "UNSUPPORTED"),
        (["diff", "a", "b"], "USAGE"),
    ):
        done = main(*arguments, "--json")
        found = json.loads(done.stdout)
        assert (found["verdict"], found["code"]) == (verdict, Verdict[verdict].code)
        assert done.code == Verdict[verdict].code


@POSIX
@POSIX_OPTIONAL
def test_broken_pipe_keeps_the_code_and_says_nothing(tmp_path: Path, honest: Path) -> None:
    """Case 54: the reader goes away before anything is written."""
    line = '{ $A verify --run "$RUN" --step 0; echo "code $?" >&2; } | true'
    done = shell(line, tmp_path, honest)
    assert done.stderr == "code 0\n"
    line = '{ $A verify --run "$RUN" --step 99; echo "code $?" >&2; } | true'
    assert shell(line, tmp_path, honest).stderr.endswith("code 2\n")
    line = '{ $A --help; echo "code $?" >&2; } | true'
    assert shell(line, tmp_path, honest).stderr == "code 0\n"


@POSIX
@POSIX_OPTIONAL
@pytest.mark.parametrize("target", [">&-", ">/dev/full"])
def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path, honest: Path, target: str) -> None:
    """Case 54: a closed or full stdout must not look like a success."""
    done = shell(f'$A verify --run "$RUN" --step 0 {target}', tmp_path, honest)
    assert done.returncode == 5
    assert "the result could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@POSIX
@POSIX_OPTIONAL
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_cut_short_is_an_error(tmp_path: Path, honest: Path, unbuffered: str) -> None:
    """At a limit of the file size an unbuffered stream writes a part, and reports no error."""
    target = tmp_path / "result.json"
    line = f'ulimit -f 2; $A verify --run "$RUN" --step 0 --json >{shlex.quote(str(target))}'
    done = shell(line, tmp_path, honest, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 5, done.stderr
    assert done.stderr == "error: the result could not be written: file too large\n"
    assert target.stat().st_size in (1024, 2048)  # blocks of 512 bytes by POSIX, of 1024 in some shells


@POSIX
@POSIX_OPTIONAL
def test_a_small_address_space_is_unsupported(tmp_path: Path, honest: Path) -> None:
    """OpenBLAS would end the process with code 1 while NumPy is imported."""
    if sys.platform == "darwin":
        pytest.skip("macOS does not enforce a limit of the address space")
    done = shell('ulimit -v 200000; $A verify --run "$RUN" --step 0 --json', tmp_path, honest)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (6, "UNSUPPORTED")
    assert done.stderr.startswith("error: the address space is limited to 204,800,000 bytes, at least 1,073,741,824")
    assert shell("ulimit -v 200000; $A --version", tmp_path, honest).returncode == 0


@POSIX
@POSIX_OPTIONAL
def test_help_that_cannot_be_written_is_an_error(tmp_path: Path, honest: Path) -> None:
    done = shell("$A --help >/dev/full", tmp_path, honest)
    assert (done.returncode, done.stderr) == (5, "error: no space left on device\n")


@POSIX
@POSIX_OPTIONAL
def test_a_mismatch_outranks_a_result_that_cannot_be_written(tmp_path: Path, honest: Path) -> None:
    assert shell('$A diff "$RUN:4" "$RUN:5" >/dev/full', tmp_path, honest).returncode == 3


@POSIX
@POSIX_OPTIONAL
def test_closed_stderr_changes_nothing(tmp_path: Path, honest: Path) -> None:
    done = shell('$A verify --run "$RUN" --step 99 2>&-', tmp_path, honest)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "extra",
    [
        {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_any_encoding_gives_the_same_code(cli: Cli, honest: Path, extra: dict[str, str]) -> None:
    """Case 55: text that the stream cannot carry (a document in Japanese) appears escaped."""
    done = cli("data", "--run", honest, "--step", 3, env=extra)
    assert done.code == 0, done.stderr
    wide = cli("verify", "--run", "\u65e5\u672c\u8a9e \u2713\nx", "--step", 0, env=extra)
    assert wide.code == 2
    assert "\\nx is not the name of a bundled run" in wide.stderr
    assert wide.stderr.count("\n") == 2


@POSIX
@POSIX_OPTIONAL
def test_a_path_that_is_not_text(tmp_path: Path, honest: Path) -> None:
    done = shell('$A verify --run "$(printf "\\377.bin")" --step 0', tmp_path, honest)
    assert done.returncode == 2
    assert "\\udcff.bin" in done.stderr
    assert "Traceback" not in done.stderr


@POSIX
@POSIX_OPTIONAL
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(tmp_path: Path, honest: Path, number: signal.Signals, code: int) -> None:
    """Case 56: the exit code of the signal, one line, one JSON object, and the same command works afterwards."""
    cache = tmp_path / "cache"
    program = (
        "import sys, time\n"
        "from auditkit.replay import steps\n"
        "def wait(*a, **k):\n"
        "    print('ready', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "steps.CompactRecords.parse = steps.RecordFile.parse = wait\n"
        "from auditkit.cli.main import main\n"
        f"main(['verify', '--run', {str(honest)!r}, '--step', '0', '--json'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(cache),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    found = json.loads(out)
    assert (found["verdict"], found["code"]) == ("INTERRUPTED", code)
    assert err == "error: interrupted\nhint: run the same command again: downloads resume\n"


@POSIX
@POSIX_OPTIONAL
def test_a_second_signal_ends_it_at_once() -> None:
    program = (
        "import os, signal\n"
        "from auditkit.cli.interrupt import Signals\n"
        "Signals().install()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.pause()\n"
        "finally:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (130, b"")


@POSIX
@POSIX_OPTIONAL
@pytest.mark.parametrize(("program", "loaded"), [("auditkit", "typer"), ("trainer", "argparse")])
def test_ctrl_c_while_modules_load_leaves_no_traceback(tmp_path: Path, program: str, loaded: str) -> None:
    (tmp_path / f"{loaded}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    words = (
        "import runpy, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # who runs the tests in the background ignores it
        f"runpy.run_module({program!r}, run_name='__main__', alter_sys=True)\n"
    )
    env = environment(tmp_path) | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, timeout=60, check=False, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@POSIX
@POSIX_OPTIONAL
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_result_is_written_leaves_no_traceback(
    tmp_path: Path, honest: Path, number: signal.Signals, code: int
) -> None:
    """As of a reader such as a pager, which has not read everything."""
    program = (
        "import sys\n"
        "from auditkit.cli import console\n"
        "write = console._write\n"
        "def told(*a):\n"
        "    print('ready', file=sys.stderr, flush=True)\n"
        "    write(*a)\n"
        "console._write = told\n"
        "from auditkit.cli.main import main\n"
        f"main(['show', 'run', '--run', {str(honest)!r}])\n"
    )
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, env=environment(tmp_path)
    )
    os.close(writer)
    assert process.stderr is not None
    assert process.stderr.readline() == b"ready\n"
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    os.close(reader)
    assert (process.returncode, told) == (code, b"")


@POSIX
@POSIX_OPTIONAL
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    "lost",
    [
        "class Lost:\n    def __del__(self):\n        os.kill(os.getpid(), {number}); time.sleep(1)\n"
        "def work(*a, **k):\n    Lost(); time.sleep(60)\n",  # a finalizer, out of which no exception comes
        "def work(*a, **k):\n    exec('os.kill(os.getpid(), {number}); time.sleep(60)')\n",  # Python remembers this one
        "def work(*a, **k):\n"
        "    try: os.kill(os.getpid(), {number}); time.sleep(60)\n"
        "    except KeyboardInterrupt: raise errors.Unsupported('a process of ours was ended') from None\n",
    ],
)
def test_a_signal_is_not_lost(tmp_path: Path, honest: Path, lost: str, number: signal.Signals, code: int) -> None:
    """Wherever the first signal arrives, the exit code is its own, and the JSON object says the same."""
    program = (
        f"import os, sys, time\nfrom auditkit import errors\nfrom auditkit.replay import steps\n"
        f"{lost.format(number=int(number))}"
        "steps.CompactRecords.parse = steps.RecordFile.parse = work\n"
        "from auditkit.cli.main import main\n"
        f"main(['verify', '--run', {str(honest)!r}, '--step', '0', '--json'])\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, timeout=50, check=False, env=environment(tmp_path / "cache"))
    assert (done.returncode, json.loads(done.stdout)["code"]) == (code, code)
    assert b"Traceback" not in done.stderr


def test_internal_errors_are_70_with_one_line(main: Cli, honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("auditkit.replay.steps.RecordFile.parse", broken)
    done = main("verify", "--run", honest, "--step", 0)
    assert done.code == 70
    assert done.stderr == (
        "error: internal error: ZeroDivisionError: oops\n"
        "hint: set AUDITKIT_DEBUG=1 for the traceback, and please report it\n"
    )
    monkeypatch.setenv("AUDITKIT_DEBUG", "1")
    assert "Traceback" in main("verify", "--run", honest, "--step", 0).stderr


def test_out_of_memory_is_unsupported(main: Cli, honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("auditkit.replay.interval.replay", large)
    done = main("verify", "--run", honest, "--step", 0)
    assert done.code == 6
    assert "UNSUPPORTED: out of memory" in done.stdout


def test_exit_code_1_is_never_used() -> None:
    assert 1 not in {verdict.code for verdict in Verdict}
    assert module.run(["--help"], Signals()) == 0


def test_help_takes_less_than_0_3_seconds(cli: Cli) -> None:
    """Of a processor, where the system counts it for children: other processes may take the machine meanwhile."""
    seconds = []
    for _ in range(3):
        before, began = os.times(), time.perf_counter()
        assert cli("--help").code == 0
        after, wall = os.times(), time.perf_counter() - began
        used = after.children_user + after.children_system - before.children_user - before.children_system
        seconds.append(used or wall)
    assert min(seconds) < 0.3


def test_help_loads_neither_numpy_nor_httpx_nor_rich(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from auditkit.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    print('loaded', sorted({'numpy', 'httpx', 'rich', 'blake3'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", env=environment(tmp_path), check=True
    )
    assert done.stdout.endswith("loaded []\n")


def test_a_run_on_a_disk_loads_no_network_library(honest: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from auditkit.cli.main import main\n"
        f"try:\n    main(['verify', '--step', '1', '--run', {str(honest)!r}])\n"
        "except SystemExit as end:\n    print(end.code, sorted({'httpx', 'httpcore', 'click'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", env=environment(tmp_path), check=True
    )
    assert done.stdout.endswith("0 []\n")
