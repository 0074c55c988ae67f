"""What went wrong at each place that was tried, and the one error that tells it best."""

from __future__ import annotations

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Untrusted
from auditkit.store.progress import Progress


class Failures:
    """Failures of the places for one artifact, in the order they were tried; each but the last is noted as it comes."""

    def __init__(self, path: str, progress: Progress) -> None:
        self._path, self._progress = path, progress
        self._errors: list[BadArtifact | Unavailable | Untrusted] = []
        self.damaged = False  # there is a cached copy, which this machine's disk spoilt

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, error: BadArtifact | Unavailable | Untrusted) -> None:
        """One place failed."""
        self._errors.append(error)

    def next_place(self) -> None:
        """Another place is about to be tried: note why the one before was of no use."""
        if self._errors:
            self._progress.note(f"{self._errors[-1].message}; trying the next place")

    def error(self, absent: str, hint: str = "") -> AuditkitError:
        """Unavailable if one of the places may still have the right bytes, else Untrusted, else BadArtifact.

        So the publisher is not accused before the bytes were wrong wherever there were any. Without a failure it is
        Unavailable with the words `absent`.
        """
        if not self._errors:
            damaged = "the cached copy is damaged, " if self.damaged else ""
            return Unavailable(f"{self._path}: {damaged}{absent}", hint=hint)
        kind = next(k for k in (Unavailable, Untrusted, BadArtifact) if any(isinstance(e, k) for e in self._errors))
        best = next((e for e in self._errors if isinstance(e, kind) and e.hint), self._errors[0])
        words = "; ".join(dict.fromkeys(e.message for e in self._errors))
        # The places' addresses end with the path as a rule; the path comes first all the same, for those that do not.
        return kind(f"{self._path}: {words}", hint=best.hint or hint)
