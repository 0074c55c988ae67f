"""Ops over lists of tensors, as a back end that launches kernels wants them; here one tensor after the other.

`each` maps a function over the list: `map`, or a thread pool's. Tensors do not touch each other, so it cannot change
a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from auditkit.formats.digest import Digest
from auditkit.numerics import adamw as tensor_adamw
from auditkit.numerics import exact_sum, global_norm
from auditkit.numerics.adamw import AdamWScalars
from auditkit.numerics.arrays import F32, I64
from auditkit.numerics.exact_sum import to_fixed
from auditkit.numerics.layout import digests

Each: TypeAlias = Callable[..., Iterable[Any]]


class Hashing(Protocol):
    """A digest of elements that come in pieces."""

    def add(self, piece: F32 | I64) -> None: ...


def add_sums(
    totals: Sequence[I64], terms: Sequence[I64], each: Each = map, *, out: Sequence[I64] | None = None
) -> list[I64]:
    """`exact_sum.add_sums` of each pair. out: where the sums go, e.g. totals; new arrays by default."""
    return list(each(exact_sum.add_sums, totals, terms, [None] * len(totals) if out is None else out))


def add_terms(
    totals: Sequence[I64],
    terms: Sequence[F32 | I64],
    unit: int,
    each: Each = map,
    *,
    out: Sequence[I64] | None = None,
    fixed: Callable[[F32, int], I64] | None = None,
) -> tuple[list[I64], list[Digest]]:
    """totals + terms, and the digest of each tensor's terms; of no totals, new arrays with the terms.

    terms: int64, or float32 that stand for their `exact_sum.to_fixed`. out: where the sums go, e.g. totals; new arrays
    by default. fixed: another back end's `to_fixed`. Raises NonFinite as `to_fixed` and `add_sums`.
    """

    def one(term: F32 | I64, total: I64 | None, sums: I64 | None) -> tuple[I64, Digest]:
        exact = _exact(term, unit, fixed)
        (found,) = digests([exact])
        if total is None:
            return exact if exact is not term else exact.copy(), found
        return exact_sum.add_sums(total, exact, sums), found

    nothing = [None] * len(terms)
    made = list(each(one, terms, totals or nothing, nothing if out is None else out))
    return [sums for sums, _ in made], [found for _, found in made]


def add_pieces(
    totals: Sequence[I64 | None],
    terms: Sequence[F32 | I64],
    unit: int,
    digests: Sequence[Hashing],
    fixed: Callable[[F32, int], I64] | None = None,
) -> list[I64]:
    """As `add_terms`, of the next piece of each of several tensors: in place of its total, if there is one, and its
    digest goes on with the terms. Raises NonFinite.
    """
    found = []
    for total, piece, digest in zip(totals, terms, digests, strict=True):
        exact = _exact(piece, unit, fixed)
        digest.add(exact)
        found.append(exact if total is None else exact_sum.add_sums(total, exact, total))
    return found


def _exact(terms: F32 | I64, unit: int, fixed: Callable[[F32, int], I64] | None) -> I64:
    if terms.dtype == np.int64:
        return cast(I64, terms)
    return (fixed or to_fixed)(cast(F32, terms), unit)


def largest(sums: Sequence[I64], each: Each = map) -> int:
    """`exact_sum.largest` of all arrays together."""
    return max(each(exact_sum.largest, sums), default=0)


def from_fixed(totals: Sequence[I64], unit: int, each: Each = map) -> list[F32]:
    """`exact_sum.from_fixed` of each."""
    return list(each(lambda total: exact_sum.from_fixed(total, unit), totals))


def squares(grads: Sequence[F32], each: Each = map) -> int:
    """The sum of `global_norm.squares` over all tensors, an integer in units 2^-62."""
    return sum(each(global_norm.squares, grads))


def adamw(
    params: Sequence[F32],
    ms: Sequence[F32],
    vs: Sequence[F32],
    grads: Sequence[F32],
    *,
    clip: np.float32,
    scalars: AdamWScalars,
    decayed: Sequence[bool],
    each: Each = map,
) -> tuple[list[F32], list[F32], list[F32]]:
    """`adamw.adamw` of each tensor: new params, ms and vs. decayed: for each tensor, whether it decays."""

    def one(p: F32, m: F32, v: F32, g: F32, decays: bool) -> tuple[F32, F32, F32]:
        return tensor_adamw.adamw(p, m, v, g, clip=clip, scalars=scalars, decayed=decays)

    made = list(each(one, params, ms, vs, grads, decayed))
    return [p for p, _, _ in made], [m for _, m, _ in made], [v for _, _, v in made]
