"""Runs one command for the shell and ends it when the process that asked for it ends, however that ends.

    python -I guard.py GRACE COMMAND

kill -9 of a training tells nobody, and a command that went on would read a folder that the next training changes. So
this program holds the other end of a pipe, its stdin: when that closes, the command and all it has started are ended.
It is a process of its own, run as a file, and imports nothing of this project.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

LAST_SECONDS = 0.5  # that others of the group have to end when the shell has


def main() -> int:
    """The command's exit code, 128 and the signal's number if one has ended it, as a shell says it."""
    grace, command = float(sys.argv[1]), sys.argv[2]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # a handler, for what is ignored is ignored by the command as well
    process = subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL)  # noqa: S602 - the user's, for the shell
    ending = threading.Event()
    watch = threading.Thread(target=_watch, args=(process, ending, grace), daemon=True)
    watch.start()
    code = process.wait()
    if ending.is_set():
        watch.join()
    return code if code >= 0 else 128 - code


def _watch(process: subprocess.Popen[bytes], ending: threading.Event, grace: float) -> None:
    """Wait for the end of stdin; then ask the whole group, this process included, to end, and kill what is left."""
    while os.read(0, 1):
        pass
    ending.set()
    if not hasattr(os, "killpg"):
        process.kill()
        return
    os.killpg(0, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    time.sleep(LAST_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
