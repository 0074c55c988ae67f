"""The self-test passes here, and finds flush-to-zero, a wrong rounding mode, and one flipped bit of any op."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MachineFault
from auditkit.numerics import known_answers, reference, self_test
from auditkit.numerics.exact_dot import Rows
from auditkit.numerics.nonfinite import NonFinite
from auditkit.numerics.product import LaterRows
from tests.ops import float_env

# What computes nothing: moves between host and device, and digests of pieces, made of block_nodes.
NO_OPS = {
    "name",
    "waiting_terms",
    "place",
    "bring",
    "host",
    "TensorDigest",
    "read_digests",
    "join_sums",
    "attention_heads",
}
OPS = sorted(set(reference.__all__) - NO_OPS)


def test_passes_on_this_machine() -> None:
    self_test.run(reference)


def test_takes_less_than_three_tenths_of_a_second() -> None:
    def once() -> float:
        start = time.thread_time()
        self_test.run(reference)
        return time.thread_time() - start

    assert min(once() for _ in range(3)) < 0.3


def test_every_op_has_a_known_answer() -> None:
    assert sorted(known_answers.PROBES) == OPS
    assert sorted(known_answers.known()) == sorted([*OPS, *known_answers.COMMON])


def test_passes_in_many_threads_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(self_test.run, reference) for _ in range(16)]:
            done.result()


def test_passes_whatever_numpy_is_told_about_floating_point_errors() -> None:
    with np.errstate(all="raise"):
        self_test.run(reference)


def test_finds_flush_to_zero() -> None:
    with (
        float_env.flush_to_zero(),
        pytest.raises(MachineFault, match="self-test, binary32 flush-to-zero: found 00000000"),
    ):
        self_test.run(reference)
    self_test.run(reference)


def test_known_answers_alone_find_flush_to_zero() -> None:
    """A kernel that flushes is found through its answers: NumPy's own arithmetic says nothing about it."""
    with float_env.flush_to_zero():
        wrong = [name for name in OPS if known_answers.answer(name, reference) != known_answers.known()[name]]
    assert {"add", "adamw", "attention_forward", "rms_norm_forward", "rope_forward", "swiglu_forward"} <= set(wrong)


def test_flush_to_zero_of_another_thread_is_found_there() -> None:
    def flushing() -> None:
        with float_env.flush_to_zero():
            self_test.run(reference)

    with ThreadPoolExecutor(1) as pool, pytest.raises(MachineFault, match="flush-to-zero"):
        pool.submit(flushing).result()
    self_test.run(reference)


@pytest.mark.parametrize("mode", [float_env.UP, float_env.DOWN, float_env.TOWARDS_ZERO])
def test_finds_a_wrong_rounding_mode(mode: str) -> None:
    with float_env.rounding(mode), pytest.raises(MachineFault, match="self-test, binary32 rounding mode: found"):
        self_test.run(reference)
    self_test.run(reference)


class Flipped:
    """The reference ops, but for one bit of one output of one op: `item` of a tuple, its middle or last element."""

    def __init__(self, op: str, item: int, last: bool) -> None:
        self.op, self.item, self.last = op, item, last

    def __getattr__(self, name: str) -> Any:
        function = getattr(reference, name)
        if name != self.op:
            return function

        def flipping(*args: Any, **options: Any) -> Any:
            try:
                output = function(*args, **options)
            except NonFinite:
                return None  # check_finite: its only output is this error
            if not isinstance(output, tuple):
                return self.flip(output)
            return tuple(self.flip(x) if i == self.item else x for i, x in enumerate(output))

        return flipping

    def place(self, size: int) -> int:
        """Which of `size` elements is changed."""
        return size - 1 if self.last else size // 2

    def flip(self, x: Any) -> Any:
        """x with one bit changed: the last of a number, the integer of a fixed-point row, the digest's first."""
        if isinstance(x, tuple):  # the operands of one result
            return (self.flip(x[0]), *x[1:])
        if isinstance(x, Rows):
            values = x.values.copy()
            at = np.unravel_index(self.place(values.size), values.shape)
            values[at] += np.ldexp(1.0, int(x.exponents[at[:-1]]) - x.bits + 1)
            return dataclasses.replace(x, values=values)
        if isinstance(x, LaterRows):  # its last bits are rounded away
            weight = x.weight.copy()
            weight.reshape(-1)[self.place(weight.size)] *= np.float32(-1)
            return dataclasses.replace(x, weight=weight)
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            field = [f.name for f in dataclasses.fields(x) if isinstance(getattr(x, f.name), (np.ndarray, np.floating))]
            name = field[-1 if self.last else 0]
            return dataclasses.replace(x, **{name: self.flip(getattr(x, name))})
        if isinstance(x, np.ndarray):
            changed = np.array(x, order="C")
            words = changed.reshape(-1).view(f"u{x.dtype.itemsize}")
            words[self.place(words.size)] ^= words.dtype.type(1)
            return changed
        if isinstance(x, np.floating):
            return np.nextafter(x, type(x)(2))
        if isinstance(x, float):
            return float(np.nextafter(x, 2.0))
        if isinstance(x, (int, np.integer)):
            return x ^ 1
        if isinstance(x, list) and isinstance(x[0], np.ndarray):
            return [self.flip(x[0]), *x[1:]]
        if isinstance(x, list) and isinstance(x[0], bytes):
            return [bytes([x[0][0] ^ 1]) + x[0][1:], *x[1:]]
        if isinstance(x, list):
            return [("1" if x[0][0] == "0" else "0") + x[0][1:], *x[1:]]
        return x


OUTPUTS = {
    "attention_backward": 3,
    "adamw": 3,
    "cross_entropy": 2,
    "cross_entropy_rows": 3,
    "cross_entropy_operand": 4,
    "rms_norm_backward": 2,
    "rms_norm_backward_add": 2,
    "rms_norm_forward": 2,
    "swiglu_backward": 2,
    "swiglu_forward": 2,
    "attention_forward": 2,
    "quantise_both": 2,
    "quantise_keep": 2,
    "merge_heads_keep": 2,
    "merge_heads_both": 2,
    "rms_norm_keep": 2,
    "swiglu_keep": 2,
    "swiglu_backward_both": 2,
}
FLIPS = [(op, item, last) for op in OPS for item in range(OUTPUTS.get(op, 1)) for last in (False, True)]


@pytest.mark.parametrize(("op", "item", "last"), FLIPS)
def test_finds_one_flipped_bit(op: str, item: int, last: bool) -> None:
    with pytest.raises(MachineFault, match=r"self-test, known answer of \w+: found"):
        self_test.run(Flipped(op, item, last))
    if item == 0:  # further outputs are caches, which show in the answers of other ops
        assert known_answers.answer(op, Flipped(op, item, last)) != known_answers.known()[op]


def test_an_op_that_has_no_result_is_a_machine_fault() -> None:
    class Broken(Flipped):
        def __getattr__(self, name: str) -> Any:
            if name == "from_fixed":
                raise NonFinite("a value is not finite")
            return getattr(reference, name)

    with pytest.raises(
        MachineFault, match="known answer of from_fixed: found a value is not finite, expected a result"
    ):
        self_test.run(Broken("", 0, False))


def test_finds_a_wrong_initial_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_answers.COMMON, "normal", lambda: "0" * 64)
    with pytest.raises(MachineFault, match="known answer of normal: found 0000"):
        self_test.run(reference)
