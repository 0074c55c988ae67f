"""The version of this package, read from its installed metadata."""

from __future__ import annotations

import importlib.metadata

DISTRIBUTION = "auditkit-verifier"  # another project owns the name `auditkit` on the package index
UNINSTALLED = "0.1.0+checkout"


def version() -> str:
    """The installed distribution's version, or UNINSTALLED when the package runs from a source folder."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return UNINSTALLED
