"""Small arrays of zeros, many of which are cleared by one call.

A kernel that finds maxima or sums asks for a few thousand words of zeros, some hundred times a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auditkit.kernels.device import Array

PAGE = 1 << 18  # words that are cleared at once
_LINE = 64  # words: what is given out begins at a multiple
_MOST = PAGE // 8  # words that are given out of a page


class ZeroPages:
    """Gives out parts of pages, none of them twice. A page lives as long as one of its parts."""

    def __init__(self) -> None:
        self._pages: dict[bool, tuple[Array, int]] = {}  # by `kept`: a page, and its first word that was not given out

    def take(self, count: int, make: Callable[[int], Array], *, kept: bool) -> Array:
        """(count,) uint32 of zeros. make: gives so many of them, for a page or for what is too large for one.

        kept: for long. Those that are soon forgotten have pages of their own.
        """
        size = -(-count // _LINE) * _LINE
        if size > _MOST:
            return make(count)
        page, at = self._pages.get(kept, (None, PAGE))
        if page is None or at + size > PAGE:
            page, at = make(PAGE), 0
        self._pages[kept] = page, at + size
        return page[at : at + count]

    def forget(self) -> None:
        """Begin new pages with the next ones that are asked for."""
        self._pages.clear()
