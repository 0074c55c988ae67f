"""What the registry remembers, in one set of statements for both kinds of database.

Attestations are only ever added, each with the next position; whoever writes is alone (Engine.writing), so the order of
the positions is the order of the commits, and the log is a function of this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from auditkit.errors import Unsupported
from auditkit.registry import schema
from auditkit.registry.engine import Engine, Row, Session

PAGE = 4096  # rows read at once
PARTS = 16  # attestations of parts of a step that are taken for each one of the whole step


@dataclass(frozen=True, slots=True)
class New:
    """A verified attestation to be stored; digests are raw bytes, `run` is the number that `add_run` gave."""

    envelope: bytes
    leaf: bytes
    run: int
    step: int
    keyid: bytes
    public: bytes
    verdict: int
    family: str
    automation: str
    outcome: str
    finished: int
    received: int
    body: bytes
    part: str = ""  # of an audit of some micro-batches, as in trust/rows.py


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of one of them: its position in the log, or None if the key has said too much about the step."""

    position: int | None
    known: bool


@dataclass(frozen=True, slots=True)
class Fact:
    """One stored attestation without its envelope, for coverage."""

    position: int
    run: int
    step: int
    key: int
    verdict: int
    family: str
    automation: str
    outcome: str
    finished: int
    part: str


_FACTS = "SELECT position, run, step, key, verdict, family, automation, outcome, finished, part FROM attestations "


class Database:
    """The tables behind an engine; opened by whoever made the engine, closed here."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        schema.bring_up_to_date(engine)
        self.meta = schema.read_meta(engine)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def add_run(self, run_id: bytes, name: str, size: int) -> int:
        """The number of a run: see `add_run`."""
        with self.engine.writing() as session:
            return add_run(session, run_id, name, size)

    def runs(self) -> list[tuple[int, bytes, str, int]]:
        """Number, run id, name and steps of every run that was ever served."""
        with self.engine.reading() as session:
            rows = session.run("SELECT id, run, name, size FROM runs ORDER BY id")
        return [(int(number), bytes(run), str(name), int(size)) for number, run, name, size in rows]

    def keys(self, first: int = 0) -> dict[int, tuple[bytes, bytes]]:
        """Key id and public key of every key that signed something here, by number, from number `first` on."""
        with self.engine.reading() as session:
            rows = session.run("SELECT id, keyid, public FROM keys WHERE id >= ?", (first,))
        return {int(number): (bytes(keyid), bytes(public)) for number, keyid, public in rows}

    def key(self, keyid: bytes) -> bytes | None:
        """The public key of a key id, if it signed something here."""
        with self.engine.reading() as session:
            rows = session.run("SELECT public FROM keys WHERE keyid = ?", (keyid,))
        return bytes(rows[0][0]) if rows else None

    def size(self) -> int:
        """How many attestations there are: the next position."""
        with self.engine.reading() as session:
            return count(session)

    def positions(self, envelopes: Sequence[bytes]) -> dict[bytes, int]:
        """The positions of those envelopes (by SHA-256) that are stored."""
        with self.engine.reading() as session:
            return _positions(session, envelopes)

    def append(self, new: Sequence[New], *, most: int) -> list[Stored]:
        """Store attestations in one transaction: see `append`."""
        with self.engine.writing() as session:
            return append(session, new, most=most)

    def facts(self, first: int, *, most: int = PAGE) -> list[Fact]:
        """The attestations from position `first` on, at most `most`."""
        with self.engine.reading() as session:
            rows = session.run(_FACTS + "WHERE position >= ? ORDER BY position LIMIT ?", (first, most))
        return [Fact(*row) for row in rows]

    def of_step(self, run: int, step: int, *, most: int) -> list[tuple[int, bytes, bytes, int, str]]:
        """Position, envelope's SHA-256, key id, verdict code and part of the attestations of a step, oldest first."""
        with self.engine.reading() as session:
            rows = session.run(
                "SELECT a.position, a.envelope, k.keyid, a.verdict, a.part FROM attestations a "
                "JOIN keys k ON k.id = a.key WHERE a.run = ? AND a.step = ? ORDER BY a.position LIMIT ?",
                (run, step, most),
            )
        return [
            (int(at), bytes(envelope), bytes(keyid), int(verdict), str(part))
            for at, envelope, keyid, verdict, part in rows
        ]

    def body(self, envelope: bytes) -> tuple[int, bytes] | None:
        """Position and bytes of the envelope with that SHA-256."""
        with self.engine.reading() as session:
            rows = session.run(
                "SELECT e.position, e.body FROM attestations a JOIN envelopes e ON e.position = a.position "
                "WHERE a.envelope = ?",
                (envelope,),
            )
        return (int(rows[0][0]), bytes(rows[0][1])) if rows else None

    def bodies(self, first: int, *, most: int) -> list[bytes]:
        """The envelopes from position `first` on, at most `most`: the entries of the log."""
        with self.engine.reading() as session:
            rows = session.run(
                "SELECT body FROM envelopes WHERE position >= ? ORDER BY position LIMIT ?", (first, most)
            )
        return [bytes(row[0]) for row in rows]

    def leaves(self, stop: int) -> Iterator[bytes]:
        """The RFC 6962 leaf hashes of positions 0 to `stop - 1`."""
        for first in range(0, stop, PAGE):
            with self.engine.reading() as session:
                rows = session.run(
                    "SELECT leaf FROM attestations WHERE position >= ? AND position < ? ORDER BY position",
                    (first, min(first + PAGE, stop)),
                )
            yield from (bytes(row[0]) for row in rows)

    def received(self, first: int, *, most: int) -> list[tuple[int, bytes]]:
        """When the attestations from position `first` on came, and their envelopes: for a backup."""
        with self.engine.reading() as session:
            rows = session.run(
                "SELECT a.received, e.body FROM attestations a JOIN envelopes e ON e.position = a.position "
                "WHERE a.position >= ? ORDER BY a.position LIMIT ?",
                (first, most),
            )
        return [(int(when), bytes(body)) for when, body in rows]


def append(session: Session, new: Sequence[New], *, most: int) -> list[Stored]:
    """Store attestations in their order; those that are stored already keep their position.

    `most`: attestations of a key about a whole step, beyond which none is taken; PARTS times as many about its parts.
    Ends the leases on whole steps that were attested.
    """
    known = _positions(session, [item.envelope for item in new])
    keys = _add_keys(session, {item.keyid: item.public for item in new})
    counts = _counts(session, {(item.run, item.step, keys[item.keyid]) for item in new})
    size = count(session)
    results: list[Stored] = []
    rows: list[Row] = []
    bodies: list[tuple[int, bytes]] = []
    for item in new:
        key = keys[item.keyid]
        place, limit = (item.run, item.step, key, item.part != ""), most * PARTS if item.part else most
        if item.envelope in known:
            results.append(Stored(known[item.envelope], True))
        elif counts.get(place, 0) >= limit:
            results.append(Stored(None, False))
        else:
            position = size + len(rows)
            known[item.envelope], counts[place] = position, counts.get(place, 0) + 1
            rows.append(_columns(item, position, key))
            bodies.append((position, item.body))
            results.append(Stored(position, False))
    if rows:
        _insert(session, rows, bodies)
    return results


def add_run(session: Session, run_id: bytes, name: str, size: int) -> int:
    """The number of a run, given now or before. Unsupported: it is known with more steps."""
    found = session.run("SELECT id, size FROM runs WHERE run = ?", (run_id,))
    if not found:
        number = _next(session, "runs")
        session.run("INSERT INTO runs VALUES (?, ?, ?, ?)", (number, run_id, name, size))
        return number
    number, before = found[0]
    if size < before:
        raise Unsupported(f"run {name} has {size} steps, and had {before} when this registry last served it")
    session.run("UPDATE runs SET size = ? WHERE id = ?", (size, number))
    return int(number)


def count(session: Session) -> int:
    """How many attestations there are: the next position."""
    return int(session.run("SELECT coalesce(max(position), -1) + 1 FROM attestations")[0][0])


def add_key(session: Session, keyid: bytes, public: bytes) -> int:
    """The number of a key, given now or before."""
    return _add_keys(session, {keyid: public})[keyid]


def marks(number: int) -> str:
    """`number` parameters, as in IN (?,?)."""
    return ",".join("?" * number)


def _add_keys(session: Session, keys: dict[bytes, bytes]) -> dict[bytes, int]:
    if not keys:
        return {}
    rows = session.run(f"SELECT keyid, id FROM keys WHERE keyid IN ({marks(len(keys))})", tuple(keys))
    found = {bytes(keyid): int(number) for keyid, number in rows}
    for keyid, public in keys.items():
        if keyid not in found:
            found[keyid] = _next(session, "keys")
            session.run("INSERT INTO keys VALUES (?, ?, ?)", (found[keyid], keyid, public))
    return found


def _next(session: Session, table: str) -> int:
    return int(session.run(f"SELECT coalesce(max(id), -1) + 1 FROM {table}")[0][0])


def _positions(session: Session, envelopes: Sequence[bytes]) -> dict[bytes, int]:
    if not envelopes:
        return {}
    statement = f"SELECT envelope, position FROM attestations WHERE envelope IN ({marks(len(envelopes))})"
    return {bytes(envelope): int(position) for envelope, position in session.run(statement, tuple(envelopes))}


def _counts(session: Session, places: set[tuple[int, int, int]]) -> dict[tuple[int, int, int, bool], int]:
    """Attestations of keys about steps, those of whole steps and of parts apart."""
    if not places:
        return {}
    values = ",".join(["(?,?,?)"] * len(places))
    rows = session.run(
        "SELECT run, step, key, part <> '', count(*) FROM attestations "
        f"WHERE (run, step, key) IN (VALUES {values}) GROUP BY run, step, key, part <> ''",
        [number for place in places for number in place],
    )
    return {(int(run), int(step), int(key), bool(part)): int(found) for run, step, key, part, found in rows}


def _columns(item: New, position: int, key: int) -> Row:
    return (
        position,
        item.envelope,
        item.leaf,
        item.run,
        item.step,
        key,
        item.verdict,
        item.family,
        item.automation,
        item.outcome,
        item.finished,
        item.received,
        item.part,
    )


def _insert(session: Session, rows: list[Row], bodies: list[tuple[int, bytes]]) -> None:
    session.run_many(f"INSERT INTO attestations VALUES ({marks(13)})", rows)
    session.run_many("INSERT INTO envelopes VALUES (?, ?)", bodies)
    session.run_many(
        "DELETE FROM leases WHERE run = ? AND step = ? AND key = ?",
        [(row[3], row[4], row[5]) for row in rows if not row[12]],
    )
