"""The run manifest: what the run id covers, what the digest covers, and what must be listed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.digest import RUN_ID, content_digest, root
from auditkit.formats.run import RunManifest, run_id, state_path
from tests.formats.samples import DATA, RECIPE, RUN, SIGNED_RUN, digest_of


def with_data(**changes: Any) -> RunManifest:
    """The sample with other data."""
    return dataclasses.replace(RUN, data=dataclasses.replace(DATA, **changes))


def test_the_run_id_is_that_of_name_recipe_and_data() -> None:
    value = {"data": DATA.to_value(), "name": "demo", "recipe": RECIPE.to_value()}
    assert RUN.run_id() == run_id("demo", RECIPE, DATA) == root(RUN_ID, canonical.dumps(value))


def test_the_run_id_changes_with_what_decides_the_run() -> None:
    schedule = dataclasses.replace(RECIPE.schedule, total_steps=11)
    changed = [
        dataclasses.replace(RUN, name="other"),
        dataclasses.replace(RUN, recipe=dataclasses.replace(RECIPE, schedule=schedule)),
        with_data(seed=4),
        with_data(windows=3),
        with_data(end_of_text=1),
    ]
    assert len({manifest.run_id() for manifest in (RUN, *changed)}) == 6


def test_the_run_id_does_not_change_with_what_a_publisher_may_still_add() -> None:
    later = [
        dataclasses.replace(RUN, mirrors=()),
        dataclasses.replace(RUN, log=dataclasses.replace(RUN.log, root=digest_of("other"))),
        dataclasses.replace(RUN, states=RUN.states[:1]),
        SIGNED_RUN,
    ]
    for manifest in later:
        assert manifest.run_id() == RUN.run_id()
        assert manifest.digest() != RUN.digest()


def test_the_digest_is_that_of_the_file() -> None:
    assert RUN.digest() == content_digest(RUN.encode())


def test_artifacts_and_states_are_found() -> None:
    assert RUN.artifact("records.bin").size == 436
    assert RUN.state(3) == RUN.states[1]
    assert RUN.state(2) is None
    with pytest.raises(BadArtifact, match='run.artifacts: "x" is not listed'):
        RUN.artifact("x")


def test_states_lie_in_folders_of_eight_digits() -> None:
    assert state_path(0) == "states/00000000"
    assert state_path(9_999_999) == "states/09999999"


NEEDED = [artifact.path for artifact in RUN.artifacts]


@pytest.mark.parametrize("path", NEEDED)
def test_every_file_that_a_verifier_needs_must_be_listed(path: str) -> None:
    fewer = tuple(artifact for artifact in RUN.artifacts if artifact.path != path)
    with pytest.raises(BadArtifact, match=f'run.artifacts: "{path}" is missing'):
        dataclasses.replace(RUN, artifacts=fewer)


def test_further_files_may_be_listed() -> None:
    more = (*RUN.artifacts, dataclasses.replace(RUN.artifacts[0], path="zz/loss.svg"))
    manifest = dataclasses.replace(RUN, artifacts=more)
    assert RunManifest.parse(manifest.encode()) == manifest


def test_a_manifest_made_in_code_is_checked_as_well() -> None:
    with pytest.raises(BadArtifact, match=r"run\.data\.windows"):
        with_data(windows=0)
    with pytest.raises(BadArtifact, match=r"run\.data\.corpus\.license"):
        with_data(corpus=dataclasses.replace(DATA.corpus, license=""))
    with pytest.raises(BadArtifact, match="is one file|are one file"):
        dataclasses.replace(RUN, artifacts=(RUN.artifacts[0], *RUN.artifacts))
    with pytest.raises(BadArtifact, match="size"):
        dataclasses.replace(RUN, artifacts=(dataclasses.replace(RUN.artifacts[0], size=-1), *RUN.artifacts[1:]))
    with pytest.raises(BadArtifact, match="root of step 0"):
        dataclasses.replace(RUN, states=(dataclasses.replace(RUN.states[0], root="x"), *RUN.states[1:]))


@pytest.mark.parametrize(
    "mirror", ["https://example.org", "http://[::1]:8000/a/b/", "https://a.b-c.org/x%20y/~me", "http://10.0.0.1:80/"]
)
def test_mirrors_are_plain_addresses(mirror: str) -> None:
    assert dataclasses.replace(RUN, mirrors=(mirror,)).mirrors == (mirror,)


@pytest.mark.parametrize(
    "mirror",
    ["", "example.org", "ftp://example.org", "https://", "https://u@example.org/", "https://example.org/#a",
     "https://example.org/a b", "https://example.org/\n", "https://example.org\\x", "https://example.org:port/",
     "javascript:alert(1)", "https://example.org/" + "a" * 2000],
)  # fmt: skip
def test_other_addresses_are_no_mirrors(mirror: str) -> None:
    with pytest.raises(BadArtifact, match=r"run\.mirrors"):
        dataclasses.replace(RUN, mirrors=(mirror,))


def test_a_publisher_is_optional_and_printed_back() -> None:
    assert RUN.publisher is None
    assert b'"publisher":{"key":"PeterNeumann+c74f20a3+' in SIGNED_RUN.encode()
    assert RunManifest.parse(SIGNED_RUN.encode()).publisher == SIGNED_RUN.publisher
    assert SIGNED_RUN.run_id() == RUN.run_id()
