"""Whether every rank still holds what was made: its copy of all parameters, its own parts of parameters and moments.

Each rank digests them where they are, and compares with the digests that the state got when it was made: those of whole
parameters are the same on all ranks, those of its own parts it said itself (`digests`). What differs is told by all
ranks at once, with the rank, the machine and the copy.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from auditkit.errors import MachineFault
from auditkit.formats.digest import Digest, content_digest
from auditkit.model.ops import Ops
from auditkit.numerics.nonfinite import NonFinite
from trainer.held import HINT, due, here, named
from trainer.parallel.agree import Caught, agree
from trainer.parallel.digests import joined_digests, own_digests, piece_texts
from trainer.parallel.group import Group
from trainer.parallel.layout import Layout
from trainer.parallel.state import STATE_ROLES, RankState

_MOST = 64  # tensors of each copy that a rank names


@dataclass(frozen=True)
class Finding:
    """What one rank has found: where it is, a digest of all digests it knows, and the tensors that differ.

    copies   of whole parameters, that other ranks' parts have gone into
    parts    its own, as "role/name"
    """

    where: str
    known: Digest
    copies: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """For the other ranks."""
        return json.dumps([self.where, self.known, self.copies[:_MOST], self.parts[:_MOST]]).encode("ascii")

    @classmethod
    def parse(cls, text: bytes) -> Finding:
        """What `encode` wrote."""
        where, known, copies, parts = json.loads(text)
        return cls(where, known, tuple(copies), tuple(parts))


class Replicas:
    """The checks of one rank; `every` how many steps, 0 for none. All ranks make the same calls."""

    def __init__(self, group: Group, layout: Layout, ops: Ops, device: str, every: int) -> None:
        self._group, self._layout, self._ops, self._device, self._every = group, layout, ops, device, every
        self._pieces = layout.pieces[group.rank]

    def sealed(self, state: RankState) -> RankState:
        """A state that was read or made anew, with what this rank says of its parts. MachineFault as `check`."""
        if not self._every:
            return state
        made = replace(state, said=self._said(state))
        said = self._group.gather_bytes(made.said)
        found = joined_digests(self._layout, said, STATE_ROLES)
        wrong = [f"{role}/{name}" for role, name in sorted(found) if found[role, name] != state.digests[role, name]]
        if wrong:  # the same on all ranks
            raise MachineFault(f"{named(wrong)} of state {state.step} did not reach memory as it was read", hint=HINT)
        self.check(made)
        return made

    @contextlib.contextmanager
    def watching(self, state: RankState) -> Iterator[None]:
        """Check a state when the block has used it, if that is due.

        A step without a finite result may come from a wrong bit: then that is what is raised.
        """
        try:
            yield
        except NonFinite:
            if self._every:
                self.check(state)
            raise
        if due(state.step, self._every):
            self.check(state)

    def suspected(self, state: RankState) -> None:
        """Check a state from which something followed that may come from a wrong bit."""
        if self._every:
            self.check(state)

    def written(self, state: RankState) -> None:
        """Check a state that is to be written."""
        if self._every:
            self.check(state)

    def check(self, state: RankState) -> None:
        """MachineFault, on every rank, that names the odd ones and what differs there."""
        caught, finding = Caught(), Finding("", "")
        with caught.catching():
            finding = self._find(state)
        found = [Finding.parse(text) for text in agree(self._group, caught, finding.encode())]
        problems = _differing(found) or _wrong(found, self._layout)
        if problems:
            raise MachineFault(f"state {state.step}: {'; '.join(problems)}", hint=HINT)

    def _said(self, state: RankState) -> bytes:
        return own_digests(self._ops, self._pieces, (state.own, state.adam_m, state.adam_v))

    def _find(self, state: RankState) -> Finding:
        names = list(state.params)
        now = self._ops.digests([state.params[name] for name in names])
        copies = tuple(name for name, digest in zip(names, now, strict=True) if digest != state.digests["param", name])
        said = self._said(state)
        keys = [f"{role}/{piece.slot.name}" for role in STATE_ROLES for piece in self._pieces]
        texts = (piece_texts(self._pieces, text, len(STATE_ROLES)) for text in (state.said, said))
        parts = tuple(key for key, was, found in zip(keys, *texts, strict=True) if was != found)
        known = content_digest(json.dumps(sorted(map(list, state.digests.items()))).encode("ascii"))
        return Finding(here(self._device), known, copies, parts)


def _differing(found: Sequence[Finding]) -> list[str]:
    """Ranks that know the state by other digests than most do."""
    (known, count), *others = Counter(one.known for one in found).most_common()
    if not others:
        return []
    if 2 * count > len(found):
        odd = [f"rank {rank} on {one.where}" for rank, one in enumerate(found) if one.known != known]
        return [f"{', '.join(odd)} holds another state than the other ranks"]
    return ["ranks hold different states: " + ", ".join(f"rank {r} on {one.where}" for r, one in enumerate(found))]


def _wrong(found: Sequence[Finding], layout: Layout) -> list[str]:
    """What differs on each rank; a parameter that differs on all of them was sent so."""
    sent = set.intersection(*(set(one.copies) for one in found)) if len(found) > 1 else set()
    told = []
    for rank, one in enumerate(found):
        about: dict[str, Any] = {
            "its own part of": one.parts,
            "its copy of": tuple(f"param/{name}" for name in one.copies if name not in sent),
            "what it sent of": tuple(f"param/{p.slot.name}" for p in layout.pieces[rank] if p.slot.name in sent),
        }
        who = f"rank {rank} on {one.where}"
        told += [f"{who}: {copy} {named(wrong)} is not what was made" for copy, wrong in about.items() if wrong]
    return told
