"""The data section: two forms that never mix, windows that follow from tokens, and a run id that covers all of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.data_spec import DataSpec, Source
from auditkit.formats.fields import Fields
from auditkit.formats.run import RunManifest
from tests.formats import samples
from tests.formats.sources import DATA, RUN, WINDOWS_RUN

FORMS = [samples.DATA, samples.WINDOWS_DATA, DATA, WINDOWS_RUN.data]


@pytest.mark.parametrize("data", FORMS)
def test_each_form_is_printed_back(data: DataSpec) -> None:
    assert DataSpec.from_fields(Fields(data.to_value(), "data")) == data


def test_only_declared_sources_need_the_second_version() -> None:
    assert [run.format[-2:] for run in (samples.RUN, samples.WINDOWS_RUN, RUN, WINDOWS_RUN)] == ["v1", "v1", "v2", "v2"]
    assert RunManifest.parse(RUN.encode()) == RUN


def test_the_text_of_sources_is_a_folder_and_no_artifact() -> None:
    assert "corpus.txt.zst" not in {artifact.path for artifact in RUN.artifacts}


@pytest.mark.parametrize(("tokens", "windows"), [(9, 1), (16, 1), (17, 2), (24, 2), (25, 3)])
def test_windows_of_a_source(tokens: int, windows: int) -> None:
    """Case 66: the last window ends with the last token, and no token begins one that would end beyond it."""
    assert DATA.windows_of(Source("a", "t", "l", tokens, 1, 0)) == windows


@pytest.mark.parametrize(
    "change", [{"weight": 2}, {"epochs": 1}, {"title": "x"}, {"license": "x"}, {"name": "x"}, {"tokens": 47}]
)
def test_everything_about_a_source_is_in_the_run_id(change: dict[str, Any]) -> None:
    changed = dataclasses.replace(DATA, sources=(dataclasses.replace(DATA.sources[0], **change), DATA.sources[1]))
    assert dataclasses.replace(RUN, data=changed).run_id() != RUN.run_id()


def test_the_order_of_sources_is_in_the_run_id() -> None:
    assert dataclasses.replace(RUN, data=dataclasses.replace(DATA, sources=DATA.sources[::-1])).run_id() != RUN.run_id()


def test_data_made_in_code_are_checked_as_well() -> None:
    with pytest.raises(BadArtifact, match="weights sum to 65538"):
        heavy = tuple(dataclasses.replace(source, weight=32769) for source in DATA.sources)
        dataclasses.replace(RUN, data=dataclasses.replace(DATA, sources=heavy))
