"""Simple Verification Results: the summary of a match and of nothing else, in the public format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.formats import svr
from auditkit.formats.svr import SimpleResult
from auditkit.formats.times import time_text
from tests.formats import attestations
from tests.formats.strategies import names

simple_results = st.builds(
    SimpleResult,
    names,
    st.integers(0, 1 << 32).map(time_text),
    st.lists(names, min_size=1, max_size=4, unique=True).map(tuple),
)


@given(simple_results)
def test_a_result_comes_back(result: SimpleResult) -> None:
    assert SimpleResult.from_value(result.to_value()) == result


def test_the_summary_of_a_match() -> None:
    statement = svr.statement(attestations.MATCH, attestations.SHA256)
    assert statement.subjects == attestations.MATCH.statement(attestations.SHA256).subjects
    assert statement.predicate_type == "https://in-toto.io/attestation/svr/v0.1"
    assert statement.predicate == {
        "properties": ["AUDITKIT_STEP_MATCH", "AUDITKIT_NUMERICS_V1"],
        "timeCreated": attestations.MATCH.finished,
        "verifier": {"id": "urn:auditkit:verifier:step-audit:v1"},
    }


@pytest.mark.parametrize("name", [name for name in attestations.AUDITS if name != "match"])
def test_there_is_none_of_another_verdict(name: str) -> None:
    with pytest.raises(ValueError, match="no properties passed"):
        svr.statement(attestations.AUDITS[name], attestations.SHA256)
