"""A forked program ends as a Python of its own would, and says the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

pytestmark = [pytest.mark.skipif(not forked.FORKS, reason="nothing is forked here")]
if not forked.FORKS:
    pytestmark.append(pytest.mark.optional("the jobs on Linux run these tests"))

PROGRAMS = {
    "all that it is given": "import os, sys; print(sys.argv, os.getcwd(), dict(os.environ)['GIVEN'], __name__)",
    "both streams": "import sys; print('out \u00e9', end=''); print('err \\udc80', file=sys.stderr)",
    "the end of the input": "import sys; print(repr(sys.stdin.read()))",
    "a code": "import sys; sys.exit(7)",
    "a code of more than a byte": "import sys; sys.exit(-1)",
    "no code": "import sys; sys.exit()",
    "a message": "import sys; sys.exit('enough')",
    "a signal": "import os, signal; print('lost'); os.kill(os.getpid(), signal.SIGKILL)",
    "an interruption": "raise KeyboardInterrupt",
    "what is done at the end": "import atexit; atexit.register(print, 'last'); print('first')",
    "a thread that goes on": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()\nprint('early')",
    "a full disk": "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('x')",
    "Ctrl-C and children as usual": "import signal\n"
    "print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGPIPE))",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_ends_as_one_of_its_own(name: str, tmp_path: Path) -> None:
    env = {**os.environ, "GIVEN": "yes", "PYTHONUTF8": "1"}
    env.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, "-c", PROGRAMS[name], "a", "b c"]
    own = subprocess.run(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    done = forked.run(PROGRAMS[name], ["a", "b c"], cwd=tmp_path, env=env)
    assert done.returncode == own.returncode
    assert done.stdout.encode() == own.stdout
    assert done.stderr.splitlines()[-1:] == own.stderr.decode().splitlines()[-1:]


def test_an_exception_leaves_its_trace() -> None:
    done = forked.run("def f():\n    raise ValueError('why')\nf()", [])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Traceback") and done.stderr.endswith("ValueError: why\n")


def test_it_begins_where_its_parent_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert forked.run("import os; print(os.getcwd())", []).stdout == f"{tmp_path}\n"


def test_it_is_asked_while_it_runs() -> None:
    with forked.start("import sys, time; print('here', flush=True); time.sleep(60)", []) as child:
        assert child.stdout is not None and child.stdout.readline() == "here\n"
        assert child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            child.communicate(0.01)
        child.terminate()
        assert child.wait(60) == child.poll() == -15


def test_many_run_at_once_and_know_nothing_of_each_other() -> None:
    code = "import sys, random; sys.modules['left'] = sys; print(sys.argv[1], random.random())"
    children = [forked.start(code, [str(number)]) for number in range(20)]
    said = [child.communicate(60)[0].split() for child in children]
    assert [int(number) for number, _ in said] == list(range(20))
    assert len({drawn for _, drawn in said}) == 20
    assert forked.run("import sys; print('left' in sys.modules)", []).stdout == "False\n"


def test_programs_find_their_modules_imported_and_torch_not() -> None:
    done = forked.run("import sys; print('auditkit.replay.verify' in sys.modules, 'torch' in sys.modules)", [])
    assert done.stdout == "True False\n"
