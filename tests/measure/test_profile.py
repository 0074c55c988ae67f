"""How calls are named and added up."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from auditkit.measure.clock import HostClock
from auditkit.measure.profile import Line, Log, added, op_label, operand_shape
from auditkit.numerics import reference


def test_calls_of_a_name_are_added_and_the_longest_comes_first() -> None:
    assert added([("a", 1.0), ("b", 5.0), ("a", 2.0)]) == [Line("b", 1, 5.0), Line("a", 2, 3.0)]


def test_sections_are_apart() -> None:
    log = Log(HostClock())
    assert log.timed("a", lambda: 7) == 7
    log.cut()
    log.timed("b", lambda: None)
    assert [[line.name for line in log.lines(number)] for number in (0, 1)] == [["a"], ["b"]]


def test_a_call_that_fails_is_not_counted() -> None:
    log = Log(HostClock())
    with pytest.raises(ZeroDivisionError):
        log.timed("a", lambda: 1 // 0)
    assert log.lines(0) == []


def test_operands_of_any_back_end_have_a_shape() -> None:
    x = np.ones((3, 5), np.float32)
    assert operand_shape(reference.quantise(x, 14)) == (3, 5, 14, 1)
    assert operand_shape(reference.quantise(np.ones((2, 3, 5), np.float32), 21)) == (3, 5, 21, 2)
    assert operand_shape(SimpleNamespace(bits=14, rows=4, length=6, batch=2)) == (4, 6, 14, 2)
    assert [operand_shape(rows) for rows in reference.quantise_both(x, 14)] == [(3, 5, 14, 1), (5, 3, 14, 1)]
    assert operand_shape(x) is None


def test_labels_tell_shapes() -> None:
    x = np.ones((3, 5), np.float32)
    rows = reference.quantise(x, 14)
    batch = reference.quantise(np.ones((2, 3, 5), np.float32), 21)
    assert op_label("dot", (rows, rows)) == "dot fx14 3,3,5"
    assert op_label("dot", (batch, batch)) == "dot fx21 3,3,5 x 2"
    assert op_label("add", (x, x)) == "add 3x5"
    assert op_label("digests", ([x, x.T],)) == "digests 2 arrays, 30 elements"
    assert op_label("rms_norm_backward_add", ([x, x], x)) == "rms_norm_backward_add 2 x 3x5"
    assert op_label("norm_from_squares", ([1, 2],)) == "norm_from_squares"
    assert op_label("learning_rate", ()) == "learning_rate"
    assert op_label("dot", (1, 2)) == "dot"
