"""The log reader: which files it reads, that it believes none of them unchecked, proofs, and offline proofs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Untrusted, UsageError
from auditkit.formats import merkle, tiles
from auditkit.formats.merkle import leaf_hash
from auditkit.formats.note import NoteKey
from auditkit.formats.tlog_proof import LogProof
from auditkit.trust import notes
from auditkit.trust.log_reader import LogReader, check_proof
from tests.formats import published_logs as published
from tests.trust.logs import KEY, ORIGIN, OTHER, PRIVATE, Place, entries, files, flip, reader, root_of, write

SIZE = 70_000
EDGE = ["tile/0/273.p/112", "tile/1/001.p/17", "tile/2/000.p/1"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three levels; do not write into it."""
    folder = tmp_path_factory.mktemp("large") / "log"
    write(folder, entries(SIZE))
    return folder


@pytest.fixture
def place(large: Path) -> Place:
    """Its files, to be changed at will."""
    return Place(large)


@pytest.mark.parametrize(
    ("index", "more"),
    [
        (0, ["tile/1/000", "tile/0/000"]),
        (65_535, ["tile/1/000", "tile/0/255"]),
        (65_536, ["tile/0/256"]),
        (69_887, ["tile/0/272"]),
        (69_888, []),
        (69_999, []),
    ],
)
def test_a_proof_reads_the_tiles_that_it_needs_and_no_others(place: Place, index: int, more: list[str]) -> None:
    log = LogReader(place, KEY)
    proof = log.proof(index)
    assert sorted(place.asked) == sorted(["checkpoint", *EDGE, *more])
    check_proof(proof, entries(SIZE)[index], KEY)
    place.asked.clear()
    assert log.entry(index) == entries(SIZE)[index]
    bundle = index // 256
    assert place.asked == [tiles.entries_path(bundle, 112 if bundle == 273 else 256)]
    place.asked.clear()
    assert (log.proof(index), log.entry(index)) == (proof, entries(SIZE)[index])
    assert place.asked == []


def test_entries_of_several_bundles(place: Place) -> None:
    log = LogReader(place, KEY)
    assert log.entries(255, 513) == entries(SIZE)[255:513]
    bundles = [path for path in place.asked if "entries" in path]
    assert bundles == ["tile/entries/000", "tile/entries/001", "tile/entries/002"]
    assert log.entries(300, 300) == []


@pytest.mark.parametrize("old", [1, 2, 255, 256, 300, 65_535, 65_536, 65_537, 69_888, 69_999, 70_000])
def test_consistency_proofs_from_tiles_verify(place: Place, old: int) -> None:
    made = entries(SIZE)
    log = LogReader(place, KEY)
    proof = log.consistency(old)
    assert proof == merkle.consistency_proof([leaf_hash(entry) for entry in made], old)
    merkle.verify_consistency(old, SIZE, proof, root_of(made[:old]), log.checkpoint().root)
    assert log.root_at(old) == root_of(made[:old])
    assert len(place.asked) <= 1 + len(EDGE) + 4


def test_a_consistency_proof_between_two_older_sizes(place: Place) -> None:
    made, log = entries(SIZE), LogReader(place, KEY)
    for old, new in ((1, 2), (3, 7), (255, 257), (300, 66_000), (65_536, 65_537)):
        roots = root_of(made[:old]), root_of(made[:new])
        merkle.verify_consistency(old, new, log.consistency(old, new), *roots)


def test_what_a_log_does_not_have_is_a_wrong_question(place: Place) -> None:
    log = LogReader(place, KEY)
    for ask in (
        lambda: log.entry(SIZE), lambda: log.entry(-1), lambda: log.proof(SIZE), lambda: log.proof(-1),
        lambda: log.entries(5, 3), lambda: log.consistency(SIZE + 1), lambda: log.consistency(5, 4),
        lambda: log.root_at(SIZE + 1),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            ask()


@pytest.mark.parametrize("size", [1, 2, 5, 255, 256, 257, 300, 513])
def test_every_entry_of_small_logs(tmp_path: Path, size: int) -> None:
    made = entries(size)
    write(tmp_path / "log", made)
    log = reader(tmp_path / "log")
    assert log.entries(0, size) == made
    for index in (0, size // 2, size - 1):
        check_proof(log.proof(index), made[index], KEY)
    log.check()


@pytest.mark.parametrize("size", [1, 7, 256, 300, 600])
def test_no_changed_byte_of_any_file_is_believed(tmp_path: Path, size: int) -> None:
    """One bit of each file in turn: whatever is then read is right, or the change is found."""
    made = entries(size)
    write(tmp_path / "log", made)
    for path, data in files(tmp_path / "log").items():
        for at in {0, len(data) // 3, len(data) - 1}:
            place = Place(tmp_path / "log")
            place.change(path, flip(at))
            log = LogReader(place, KEY)
            with pytest.raises((BadArtifact, Untrusted)):
                log.check()
                log.entries(0, size)
                [log.proof(index) for index in range(size)]


def test_a_hash_is_checked_against_the_root_before_it_is_used(place: Place) -> None:
    """Each tile on the way, changed where the proof does not even look, is refused."""
    for path in ("tile/0/000", "tile/1/000", *EDGE):
        changed = Place.__new__(Place)
        changed.files, changed.asked = dict(place.files), []
        changed.change(path, flip(len(place.files[path]) - 1))
        with pytest.raises(BadArtifact, match=path.replace(".", r"\.")):
            LogReader(changed, KEY).proof(0)


def test_files_of_another_size_are_refused(place: Place) -> None:
    for path in ("tile/0/000", "tile/1/000", *EDGE, "tile/entries/000"):
        for edit in (lambda data: data[:-1], lambda data: data + b"\0", lambda data: b""):
            changed = Place.__new__(Place)
            changed.files, changed.asked = dict(place.files), []
            changed.change(path, edit)
            with pytest.raises(BadArtifact):
                LogReader(changed, KEY).entry(0)


def test_fetches_are_bounded(large: Path) -> None:
    limits: dict[str, int] = {}
    serve = Place(large)

    def fetch(path: str, limit: int) -> bytes:
        limits[path] = limit
        return serve(path, limit)

    LogReader(fetch, KEY, entry_bytes=100).entry(69_999)
    assert limits["tile/0/273.p/112"] == 112 * 32
    assert limits["tile/entries/273.p/112"] == 256 * 102


def test_a_partial_tile_that_became_full_is_taken_from_the_full_one(tmp_path: Path) -> None:
    """A log that grew may remove partial tiles; an older copy of its checkpoint still leads to everything."""
    made = entries(600)
    write(tmp_path / "log", made[:300])
    old = (tmp_path / "log" / "checkpoint").read_bytes()
    write(tmp_path / "log", made[300:])
    place = Place(tmp_path / "log")
    place.files["checkpoint"] = old
    assert not [path for path in place.files if path.startswith("tile/0/001.p/")]
    log = LogReader(place, KEY)
    assert log.entries(0, 300) == made[:300]
    check_proof(log.proof(299), made[299], KEY)
    for path in ("tile/0/001", "tile/entries/001"):
        place = Place(tmp_path / "log")
        place.files["checkpoint"] = old
        place.change(path, flip(0))
        with pytest.raises(BadArtifact):
            LogReader(place, KEY).entries(0, 300)
        del place.files[path]
        with pytest.raises(Unavailable, match=rf"{path}\.p/44"):
            LogReader(place, KEY).entries(0, 300)


def test_the_right_key_and_origin(large: Path) -> None:
    with pytest.raises(Untrusted, match="not signed by"):
        reader(large, notes.note_key(ORIGIN, OTHER.public)).checkpoint()
    with pytest.raises(Untrusted, match="not signed by"):
        reader(large, notes.note_key("another", PRIVATE.public)).checkpoint()
    with pytest.raises(Untrusted, match='not of "another"'):
        LogReader(Place(large), KEY, origin="another").proof(0)


def test_a_log_by_another_of_its_checkpoints(tmp_path: Path) -> None:
    made = entries(300)
    write(tmp_path / "log", made[:44])
    older = reader(tmp_path / "log").note
    write(tmp_path / "log", made[44:])
    log = reader(tmp_path / "log")
    assert log.at(older).checkpoint().size == 44
    assert log.at(older).entry(43) == made[43]
    with pytest.raises(UsageError):
        log.at(older).entry(44)


def test_an_empty_log(tmp_path: Path) -> None:
    empty = notes.sign(f"{ORIGIN}\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n", ORIGIN, PRIVATE)
    log = LogReader(lambda path, limit: empty.encode(), KEY)
    assert (log.checkpoint().size, log.root_at(0), log.consistency(0), log.entries(0, 0)) == (
        0,
        merkle.EMPTY_ROOT,
        [],
        [],
    )
    log.check()


def test_offline_proofs(large: Path, tmp_path: Path) -> None:
    made, index = entries(SIZE), 12_345
    proof = LogProof.parse(reader(large).proof(index).encode())
    assert check_proof(proof, made[index], KEY).size == SIZE
    other = reader(large).proof(index + 1)
    write(tmp_path / "log", [*made[:9], b"x"])
    cases = [
        (proof, made[index + 1], KEY, None),
        (proof, made[index] + b" ", KEY, None),
        (replace(proof, index=index + 1), made[index], KEY, None),
        (replace(proof, index=SIZE + index), made[index], KEY, None),
        (replace(proof, hashes=other.hashes), made[index], KEY, None),
        (replace(proof, hashes=proof.hashes[:-1]), made[index], KEY, None),
        (replace(proof, hashes=(*proof.hashes, bytes(32))), made[index], KEY, None),
        (replace(proof, checkpoint=reader(tmp_path / "log").note), made[index], KEY, None),
        (proof, made[index], notes.note_key(ORIGIN, OTHER.public), None),
        (proof, made[index], KEY, "another"),
    ]
    for case, entry, key, origin in cases:
        with pytest.raises(Untrusted):
            check_proof(case, entry, key, origin=origin)


def test_an_offline_proof_cut_anywhere_is_an_error_of_ours(large: Path) -> None:
    data = reader(large).proof(0).encode()
    for end in range(0, len(data), 7):
        with pytest.raises(AuditkitError):
            check_proof(LogProof.parse(data[:end]), entries(1)[0], KEY)


def test_a_real_checkpoint_without_its_tiles_is_unavailable() -> None:
    def fetch(path: str, limit: int) -> bytes:
        if path == "checkpoint":
            return published.ARCHE_NOTE.encode()
        raise Unavailable(f"{path}: not here")

    log = LogReader(fetch, NoteKey.parse(published.ARCHE))
    assert log.checkpoint().size == 1_432_088_532
    with pytest.raises(Unavailable, match=r"tile/0/x005/x594/095\.p/212"):
        log.proof(0)
