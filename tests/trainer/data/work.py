"""Work that processes of a pool do in tests: honest, slow, refusing, dying."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from auditkit.errors import BadArtifact
from trainer.data.encode import DocumentEncoder, Setup


def double(setup: bytes) -> Callable[[bytes], bytes]:
    """Each job twice, later jobs sooner than earlier ones, so that a wrong order would show."""

    def work(job: bytes) -> bytes:
        time.sleep(0.002 * (len(job) % 5))
        return setup + job + job

    return work


def process_ids(setup: bytes) -> Callable[[bytes], bytes]:
    """The number of the process that worked."""
    return lambda job: str(os.getpid()).encode()


def refusing(setup: bytes) -> Callable[[bytes], bytes]:
    """Work that refuses one job."""

    def work(job: bytes) -> bytes:
        if job == setup:
            raise BadArtifact(f"job {job.decode()} is bad", hint="naïve café")
        return job

    return work


def dying(setup: bytes) -> Callable[[bytes], bytes]:
    """Work whose process is killed by one job, as by a kernel that is out of memory."""

    def work(job: bytes) -> bytes:
        if job == setup:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return job

    return work


def raising(setup: bytes) -> Callable[[bytes], bytes]:
    """Work with a bug."""
    raise KeyError("a bug")


class DyingEncoder(DocumentEncoder):
    """Encodes documents until one of them says `die here`."""

    def __call__(self, job: bytes) -> bytes:
        if b"die here" in job:
            os._exit(9)
        return super().__call__(job)


class SlowEncoder(DocumentEncoder):
    """Leaves a file named by its process, and then takes its time; the folder is in the environment."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        (Path(os.environ["TEST_PROCESSES"]) / str(os.getpid())).touch()

    def __call__(self, job: bytes) -> bytes:
        time.sleep(60)
        return super().__call__(job)
