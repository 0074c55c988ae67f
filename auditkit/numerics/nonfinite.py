"""The error of a step that has no result: inf, NaN, an exact sum that would wrap, or a norm beyond a declared bound."""

from __future__ import annotations

from auditkit.errors import MismatchError


class NonFinite(MismatchError):
    """a value is not finite, or an exact sum leaves its range; such a step has no result (SPEC.md sections 1 and 18)"""
