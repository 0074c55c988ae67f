"""The error of a step that meets a value outside the arithmetic's range: inf, NaN, or an exact sum that would wrap."""

from __future__ import annotations

from auditkit.errors import MismatchError


class NonFinite(MismatchError):
    """a value is not finite, or an exact sum leaves its range; such a step has no result (SPEC.md section 1)"""
