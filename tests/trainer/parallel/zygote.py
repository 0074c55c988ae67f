"""A process that has imported torch and forks ranks on request: starting one costs milliseconds in place of seconds.

    python -m tests.trainer.parallel.zygote

Reads a JSON line for each request and answers with one. A rank runs `trainer.cli.main` or another function of no
arguments, with the environment that torchrun would give it, its output in files.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch.distributed  # noqa: F401 - what takes the time

from trainer import cli
from trainer.parallel import launch  # noqa: F401


def main() -> None:
    """Answer requests until there are no more; then end every rank that is left."""
    with contextlib.suppress(ImportError):  # of the loss plot, if it can be made
        importlib.import_module("matplotlib.backends.backend_svg")
    codes: dict[int, int | None] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "size" in request:
            answer: Any = [_rank(rank, request) for rank in range(request["size"])]
            codes |= dict.fromkeys(answer)
        else:
            _look(codes)
            answer = [codes[process] for process in request["processes"]]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for process, code in codes.items():
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _look(codes: dict[int, int | None]) -> None:
    """How each rank has ended, None while it runs."""
    for process, code in codes.items():
        if code is None:
            found, status = os.waitpid(process, os.WNOHANG)
            codes[process] = os.waitstatus_to_exitcode(status) if found else None


def _rank(rank: int, request: dict[str, Any]) -> int:
    """Fork one rank; its process id."""
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.setsid()
        folder = Path(request["folder"])
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(folder / f"{name}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": request["size"], "LOCAL_WORLD_SIZE": request["size"]}
        os.environ.update({key: str(value) for key, value in numbers.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(request["port"])})
        exec(request.get("before", {}).get(str(rank), ""), {})
        if "call" in request:
            module, name = request["call"].split(":")
            code = getattr(importlib.import_module(module), name)(*request["arguments"])
        else:
            code = cli.main(request["arguments"])
    except BaseException:  # noqa: BLE001 - nothing may get back into the loop of the parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    return 0


if __name__ == "__main__":
    main()
