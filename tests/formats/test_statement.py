"""in-toto Statements: printed and parsed back, and nothing of the format's latitude."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from auditkit.formats.statement import Statement, Subject
from tests.formats.strategies import digests, json_values, names

statements = st.builds(
    Statement,
    st.lists(st.builds(Subject, names, digests), min_size=1, max_size=3).map(tuple),
    names,
    st.dictionaries(names, json_values, max_size=4),
)


@given(statements)
def test_a_statement_is_printed_and_parsed_back(statement: Statement) -> None:
    data = statement.encode()
    assert Statement.parse(data) == statement
    assert Statement.parse(data).encode() == data
