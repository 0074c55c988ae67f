"""Ways to misread SPEC.md: each, put into the oracle, contradicts a committed case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.ops.oracle import attention, layers, plain, sums, update
from tests.ops.oracle.rounding import NoResult, frexp, real, rn32, rn64, two_to
from tests.vectors.oracles import cases_of, differences

F32 = np.float32
ONE = F32(1)


class Reading(NamedTuple):
    """A wrong reading: the functions of the oracle that it replaces, and a field that must come out different."""

    op: str
    field: str
    replaced: dict[tuple[Any, str], Callable[..., Any]]


def scale_in_binary32(head_dim: int) -> np.float32:
    """1 / sqrt(D) with both operations in binary32."""
    return F32(ONE / np.sqrt(F32(head_dim)))


def over_all_earlier_keys(rows: Any, seen: Sequence[Any]) -> int:
    """X_i that forgets the window."""
    keys = range(max(seen) + 1) if isinstance(rows, list) else seen
    return int(max(rows[n].exponent for n in keys))


def over_all_later_queries(rows: Any, seen: Sequence[Any]) -> int:
    """Y_j that forgets the window."""
    pairs = seen if isinstance(rows, list) else [(h, i) for h, i in rows if i >= seen[0][1]]
    return int(max(rows[n].exponent for n in pairs))


def of_the_head_alone(rows: Any, seen: Sequence[Any]) -> int:
    """Y_j of the first query head alone."""
    pairs = seen if isinstance(rows, list) else [(h, i) for h, i in seen if h == 0]
    return int(max(rows[n].exponent for n in pairs))


def clamped(weights: Any, rows: Sequence[sums.Row], true: Callable[..., int] = sums.true_bound) -> int:
    """E that stops at -149."""
    return max(true(weights, rows), sums.ZERO_ROW)


def with_zero_rows(weights: Any, rows: Sequence[sums.Row]) -> int:
    """E over all rows, those of zeros with their exponent of -149."""
    largest = max(abs(real(w)) * two_to(row.exponent) for w, row in zip(weights, rows, strict=True))
    return frexp(largest) if largest else sums.ZERO_ROW


def rounded_twice(x: Fraction) -> np.float32:
    """A sum held in binary64 before it is rounded."""
    return F32(rn64(x))


def fused_product(p: np.float32, decay: np.float32, change: np.float32) -> np.float32:
    """p * decay - change with one rounding."""
    return rn32(real(p) * real(decay) - real(change))


def exact_change(m: np.float32, v: np.float32, s: update.Scalars) -> Fraction:
    """The change before its last rounding."""
    return real(m / (np.sqrt(v) / s.c2 + s.eps)) * real(s.rate)


def fused_change(p: np.float32, decay: np.float32, change: Fraction) -> np.float32:
    """p * decay rounded, less a change that is not."""
    return rn32(real(p * decay) - change)


def running(terms: Iterable[int]) -> int:
    """A sum whose range is checked after each term."""
    total = 0
    for term in terms:
        total += term
        if not -sums.LIMIT <= total < sums.LIMIT:
            raise NoResult("a partial sum")
    return total


def symmetric(terms: Iterable[int]) -> int:
    """A range without -2^62."""
    total = sum(terms)
    if abs(total) >= sums.LIMIT:
        raise NoResult("a sum")
    return total


def wrapping(terms: Iterable[int]) -> int:
    """The range of a sum that has wrapped."""
    total = (sum(terms) + (1 << 63)) % (1 << 64) - (1 << 63)
    return symmetric([total]) if total != -sums.LIMIT else total


def added_to_zero(x: Sequence[np.float32], true: Callable[..., np.float32] = sums.row_sum) -> np.float32:
    """A row of one element as a sum that begins with +0."""
    return F32(true(x) + F32(0)) if len(x) == 1 else true(x)


def norm_by_binary32_root(totals: Iterable[int]) -> np.float32:
    """A root of the sum after it was rounded to binary32."""
    return F32(np.sqrt(F32(rn64(sum(totals) * two_to(-62)))))


def clip_by_reciprocal(norm: np.float32, clip_norm: np.float32) -> np.float32:
    """clip_norm times 1 / norm."""
    return F32(clip_norm * (ONE / norm)) if clip_norm > 0 and norm > clip_norm else ONE


def all_in_a_row(terms: Sequence[np.float32], radices: Sequence[int], true: Any = update.fold) -> np.float32:
    """A fold that forgets its groups."""
    return F32(true(terms, ()))


def from_the_last(terms: Sequence[np.float32], radices: Sequence[int], true: Any = update.fold) -> np.float32:
    """Groups that are cut and added from the last term on."""
    return F32(true(list(reversed(terms)), radices))


def in_as_many_groups(terms: Sequence[np.float32], radices: Sequence[int], true: Any = update.fold) -> np.float32:
    """r_i as the number of groups."""
    return F32(true(terms, [-(-len(terms) // radix) for radix in radices]))


def largest_groups_first(terms: Sequence[np.float32], radices: Sequence[int], true: Any = update.fold) -> np.float32:
    """The radices in the other order, the outermost first."""
    return F32(true(terms, list(reversed(radices))))


def short_group_first(terms: Sequence[np.float32], radices: Sequence[int], true: Any = update.fold) -> np.float32:
    """The first group short, not the last."""
    rest = len(terms) % radices[0]
    first = [true(terms[:rest], ())] if rest else []
    groups = [true(terms[at : at + radices[0]], ()) for at in range(rest, len(terms), radices[0])]
    return F32(true([*first, *groups], radices[1:]))


def exact_of_the_terms(terms: Sequence[np.float32], radices: Sequence[int]) -> np.float32:
    """The terms added exactly."""
    return rn32(sum(map(real, terms), Fraction(0)))


MEAN = {(layers, "mean_of"): lambda total, count: F32(total * (ONE / count))}
READINGS = {
    "(m * rate) / (..)": Reading(
        "adamw", "new_param", {(update, "change_of"): lambda m, v, s: (m * s.rate) / (np.sqrt(v) / s.c2 + s.eps)}
    ),
    "sqrt(v) * (1 / c2)": Reading(
        "adamw", "new_param", {(update, "change_of"): lambda m, v, s: m / (np.sqrt(v) * (ONE / s.c2) + s.eps) * s.rate}
    ),
    "p * decay fused": Reading("adamw", "new_param", {(update, "less_change"): fused_product}),
    "the change fused": Reading(
        "adamw", "new_param", {(update, "change_of"): exact_change, (update, "less_change"): fused_change}
    ),
    "g * (g * a2)": Reading(
        "adamw", "new_v", {(update, "second_moment"): lambda v, g, s: v * s.beta2 + g * (g * s.a2)}
    ),
    "decay in binary32": Reading("adamw", "decay", {(update, "decay_of"): lambda lr, wd: ONE - lr * F32(wd)}),
    "decay of a rounded product": Reading(
        "adamw", "decay", {(update, "decay_of"): lambda lr, wd: ONE - F32(float(lr) * wd)}
    ),
    "scale in binary32": Reading("attention", "out", {(attention, "scale_of"): scale_in_binary32}),
    "scale in binary32, backward": Reading("attention", "dq", {(attention, "scale_of"): scale_in_binary32}),
    "scale in binary32, f32": Reading("f32_attention", "out", {(plain, "scale_of"): scale_in_binary32}),
    "X without window": Reading("attention", "out", {(attention, "bound_of"): over_all_earlier_keys}),
    "Y without window": Reading("attention", "dv", {(attention, "bound_of"): over_all_later_queries}),
    "Y of one head": Reading("attention", "dv", {(attention, "bound_of"): of_the_head_alone}),
    "E clamped": Reading("weighted_sum", "result", {(sums, "true_bound"): clamped}),
    "zero rows in the maximum": Reading("weighted_sum", "result", {(sums, "true_bound"): with_zero_rows}),
    "a weighted sum in binary64": Reading("weighted_sum", "result", {(sums, "rn32"): rounded_twice}),
    "a dot in binary64": Reading("exact_dot", "product", {(sums, "rn32"): rounded_twice}),
    "Z in binary32": Reading("cross_entropy", "loss_sum", {(layers, "denominator"): sums.row_sum}),
    "lse - x_y": Reading("cross_entropy", "loss_sum", {(layers, "loss_of"): lambda m, log_z, x_y: (m + log_z) - x_y}),
    "root in binary32": Reading("global_norm", "norm", {(update, "norm"): norm_by_binary32_root}),
    "clip_norm * (1 / norm)": Reading("global_norm", "clip", {(update, "clip_factor"): clip_by_reciprocal}),
    "fold without groups": Reading("fold", "gradient", {(update, "fold"): all_in_a_row}),
    "fold from the last": Reading("fold", "gradient", {(update, "fold"): from_the_last}),
    "fold into r groups": Reading("fold", "gradient", {(update, "fold"): in_as_many_groups}),
    "fold, outermost first": Reading("fold", "gradient", {(update, "fold"): largest_groups_first}),
    "fold, short group first": Reading("fold", "gradient", {(update, "fold"): short_group_first}),
    "fold, exact": Reading("fold", "gradient", {(update, "fold"): exact_of_the_terms}),
    "mean * (1 / C)": Reading("rms_norm", "rstd", MEAN),
    "mean * (1 / C), backward": Reading("rms_norm", "dx", MEAN),
    "one term added to 0": Reading("row_sum", "sum", {(sums, "row_sum"): added_to_zero}),
    "a range of each partial sum": Reading("no_result", "has_result", {(sums, "exact"): running}),
    "a range without -2^62": Reading("no_result", "has_result", {(sums, "exact"): symmetric}),
    "a range of the wrapped sum": Reading("no_result", "has_result", {(sums, "exact"): wrapping}),
}


@pytest.mark.parametrize("name", READINGS)
def test_a_committed_case_contradicts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, field, replaced = READINGS[name]
    for (module, function), wrong in replaced.items():
        monkeypatch.setattr(module, function, wrong)
    with np.errstate(all="ignore"):
        assert any(field in differences(op, case) for case in cases_of(op))


@pytest.mark.parametrize("width", ["3", "7", "9"])
def test_each_width_contradicts_a_mean_by_reciprocal(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "mean_of", MEAN[layers, "mean_of"])
    (case,) = (c for c in cases_of("rms_norm") if c["name"] == f"mean of {width}")
    assert {"rstd", "dx"} <= set(differences("rms_norm", case))


@pytest.mark.parametrize("width", ["6", "18", "24"])
def test_each_width_contradicts_a_scale_in_binary32(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 21 bits: rounding to 14 hides a last bit."""
    monkeypatch.setattr(attention, "scale_of", scale_in_binary32)
    cases = [c for c in cases_of("attention") if c["name"] == f"width {width}"]
    assert {c["bits"] for c in cases} == {14, 21}
    assert any(differences("attention", c) for c in cases)
