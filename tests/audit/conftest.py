"""The tiny run of the replay's tests, for what is built on its reports."""

from __future__ import annotations

from tests.replay.conftest import compact, honest, parts

__all__ = ["compact", "honest", "parts"]
