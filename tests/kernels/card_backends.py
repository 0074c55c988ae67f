"""Back ends of a real card for tests that make its life hard."""

from __future__ import annotations

from typing import Any

from auditkit.replay.backend import CudaBackend


class Untested(CudaBackend):
    """A back end whose self-test has been run."""

    def self_test(self) -> None:
        """Nothing."""


class Narrowed(Untested):
    """One to whose device's pool somebody sets a limit after the plan was made: a step needs more."""

    def step(self, *args: Any, **options: Any) -> Any:
        """As CudaBackend.step."""
        device = self.ops.device
        with device.use():  # the state has 1.3 MB, a step needs more than as much again
            device.pool.set_limit(int(device.pool.used_bytes()) + (2 << 20))
        return super().step(*args, **options)
