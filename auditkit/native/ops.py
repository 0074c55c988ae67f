"""The ops in C under the names that all back ends share (auditkit/model/ops.py); all others are the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from auditkit.errors import Unsupported
from auditkit.native import compile as compiled
from auditkit.native.attention import Attention
from auditkit.native.elementwise import Elementwise
from auditkit.native.library import Library
from auditkit.native.operands import Operands
from auditkit.native.product import Products
from auditkit.numerics import reference


class NativeOps:
    """The ops of this processor."""

    def __init__(self, path: Path) -> None:
        """path: of a compiled library. Raises Unsupported."""
        library = Library(path)
        products, elementwise = Products(library), Elementwise(library)
        parts = (products, Attention(library, products), elementwise, Operands(products, elementwise))
        self.origin = path.stem.rpartition("-")[2][:16]  # of the digest of the library
        self.computed = False  # whether a replay was by them
        self._own: dict[str, Any] = {name: getattr(part, name) for part in parts for name in part.OPS}

    @property
    def name(self) -> str:
        """As the reference calls itself where nothing is in C."""
        return "native" if self._own else str(reference.name)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__.get("_own", {})
        return own[name] if name in own else getattr(reference, name)

    def begin(self) -> None:
        """A replay begins, by these ops unless they are forgotten."""
        self.computed = self.computed or bool(self._own)

    def forget(self) -> None:
        """From now on be the reference: what a second replay computes must not come from the same code."""
        self._own = {}


def load(cache: Path, *, compile_it: bool) -> NativeOps | None:
    """The ops of the library that the cache has; compiled now if asked for, else None where it has none.

    Raises Unsupported where it cannot be compiled or does not run here.
    """
    path = compiled.find(cache)
    if path is not None:
        try:
            return NativeOps(path)
        except Unsupported:
            if not compile_it:
                raise
            path.unlink(missing_ok=True)  # it will not get better
    return NativeOps(compiled.make(cache)) if compile_it else None
