"""`auditkit data` and `show` of a run with declared sources: by source and licence, in text and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.replay import make_sources


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two sources; do not write into it."""
    return make_sources.publish(*make_sources.train(), tmp_path_factory.mktemp("mixed") / "tiny")


def test_sources_and_documents_are_shown(mixed: Path, main: Cli) -> None:
    done = main("data", "--run", mixed, "--step", "1")
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert lines[2] == "data   Pages and books (CC0-1.0 AND MIT)"
    assert lines[3:5] == ["source web, weight 3: The web (CC0-1.0)", "source books, weight 1: The books (MIT)"]
    assert any(line.startswith("sequence 3: books, epoch 0, window ") and line.endswith(" on") for line in lines)
    assert any(line.startswith("  book-") and ".txt, tokens " in line for line in lines)
    assert any(line.startswith("  pages.jsonl:") for line in lines)
    assert lines[-2:] == [
        "  - the training step itself (`auditkit verify --step N` does)",
        "  - the numbers of tokens of documents that this step did not see: they say where its windows begin",
    ]


def test_the_json_names_the_source_of_each_sequence(mixed: Path, main: Cli) -> None:
    done = main("data", "--run", mixed, "--step", "1", "--json")
    found = json.loads(done.stdout)
    assert (done.code, found["verdict"]) == (0, "MATCH")
    assert [row["source"] for row in found["sequences"]] == ["books", "web", "web"]
    assert [source["license"] for source in found["sources"]] == ["CC0-1.0", "MIT"]
    assert len(found["not_checked"]) == 2
    assert set(found["derived"]) == {"library", "documents", "tokens"}


def test_a_missing_shard_is_unavailable(mixed: Path, main: Cli, tmp_path: Path) -> None:
    made = make_sources.publish(*make_sources.train(), tmp_path / "run")
    for shard in (made / "corpus/web").glob("*.zst"):
        shard.unlink()
    done = main("data", "--run", made, "--step", "1")
    assert done.code == 5
    assert "error: corpus/web/0000" in done.stderr


def test_show_run_lists_the_sources(mixed: Path, main: Cli) -> None:
    found = json.loads(main("show", "run", "--run", mixed, "--json").stdout)
    assert [(s["name"], s["weight"], s["license"]) for s in found["data"]["sources"]] == [
        ("web", 3, "CC0-1.0"),
        ("books", 1, "MIT"),
    ]
    assert main("show", "run", "--run", mixed).code == 0
