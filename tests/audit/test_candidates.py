"""Where attestations are found: lines cut anywhere, links, depth; and the table of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.audit import candidates
from auditkit.audit.candidates import find
from auditkit.audit.record_table import RecordTable
from auditkit.errors import Unavailable, UsageError
from auditkit.formats.step_audit import sha256_of
from auditkit.trust.keys import PrivateKey
from tests.audit.envelopes import chain, envelope, put


@pytest.mark.parametrize("size", [1, 700, 5000])
def test_a_file_of_lines_may_be_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    path = put(tmp_path, "lines.jsonl", b"a\n" + b"bb\n" * 3 + b"\n\n" + b"c" * 999 + b"\n" + b"d" * 70_000 + b"\ne")
    whole = read(path)
    assert len(whole) == 7
    assert [where.rpartition(" ")[2] for where, _ in whole] == ["0", "2", "5", "8", "13", "1,013", "71,014"]
    monkeypatch.setattr(candidates, "BATCH_BYTES", size)
    assert read(path) == whole


def read(path: Path) -> list[tuple[str, str]]:
    """Where each line of a file is found, and what it is, in order."""
    found = []
    for batch in find([path]).batches:
        contents = batch.read()
        found += [(contents.where(index), data.decode()) for index, data in enumerate(contents.envelopes)]
        found += [(where, error.message) for where, error in contents.failed]
    return sorted(found, key=lambda item: int(item[0].rpartition(" ")[2].replace(",", "")))


def test_links_are_not_followed_and_depth_is_bounded(tmp_path: Path) -> None:
    put(tmp_path, "in/a.json", envelope(0))
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in", target_is_directory=True)
    (tmp_path / "in" / "b.json").symlink_to(tmp_path / "in" / "a.json")
    found = find([tmp_path / "in"])
    assert (found.count, found.others) == (1, 2)
    put(tmp_path, "deep/" + "d/" * 40 + "a.json", envelope(0))
    with pytest.raises(UsageError, match="more than 32 deep"):
        find([tmp_path / "deep"])
    with pytest.raises(Unavailable, match="there is no file or folder"):
        find([tmp_path / "nothing"])


def test_a_private_key_beside_what_it_signed_is_passed_over(tmp_path: Path) -> None:
    """As the commands of the README leave it; one that is named itself is refused by whoever reads keys."""
    key = PrivateKey(bytes(range(32)))
    put(tmp_path, "in/a.json", envelope(0))
    put(tmp_path, "in/alice.pem", key.pem())
    put(tmp_path, "in/bob.pem", key.public.pem())
    put(tmp_path, "in/neither.pem", b"no key")
    found = find([tmp_path / "in"])
    assert [path.name for path in found.keys] == ["bob.pem", "neither.pem"]
    assert (found.count, found.others) == (1, 1)
    assert [path.name for path in find([tmp_path / "in" / "alice.pem"]).keys] == ["alice.pem"]


def test_a_table_of_records_gives_them_back() -> None:
    records = chain()
    table = RecordTable(records)
    assert list(table) == list(records)
    assert table[1:3] == list(records[1:3])
    assert [row.tobytes().hex() for row in table.sha256] == [sha256_of(record) for record in records]
    with pytest.raises(IndexError):
        table[len(records)]
    assert len(RecordTable([])) == 0
