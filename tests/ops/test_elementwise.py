"""SPEC.md section 6 as plain Python against committed vectors and random words: every elementary function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from blake3 import blake3

from auditkit.numerics import elementwise
from auditkit.numerics.cos import cos
from auditkit.numerics.exp import exp
from auditkit.numerics.log import log
from auditkit.numerics.sin import sin
from tests.ops import elementary_scalar as scalar
from tests.ops.elementary_checks import Elementwise, load, random_patterns

ONE_NUMBER: dict[str, Callable[[float], float]] = {
    "exp": scalar.exp,
    "log": scalar.log,
    "sin": lambda x: scalar.sin_cos(x)[0],
    "cos": lambda x: scalar.sin_cos(x)[1],
    "exp64": scalar.exp64,
    "log64": scalar.log64,
    "sin64": lambda x: scalar.sin_cos64(x)[0],
    "cos64": lambda x: scalar.sin_cos64(x)[1],
}
OPS: dict[str, Elementwise] = {"exp": exp, "log": log, "sin": sin, "cos": cos}


@pytest.mark.parametrize("name", OPS)
def test_vectors_of_binary32(name: str) -> None:
    for x, y in load(name)["cases"]:
        assert f"{scalar.bits32(ONE_NUMBER[name](scalar.w32(int(x, 16)))):08x}" == y, x


@pytest.mark.parametrize("name", ["exp64", "log64", "sin64", "cos64"])
def test_vectors_of_binary64(name: str) -> None:
    for x, y in load("float64")[name]:
        assert f"{scalar.bits64(ONE_NUMBER[name](scalar.w64(int(x, 16)))):016x}" == y, x


@pytest.mark.parametrize("name", OPS)
def test_random_words(name: str) -> None:
    x = random_patterns(8192, 30)
    got = OPS[name](x).view(np.uint32)
    for value, word in zip(x.tolist(), got.tolist(), strict=True):
        assert scalar.bits32(ONE_NUMBER[name](value)) == word, f"{name} of {value!r}"


def test_vectors_of_normal() -> None:
    for seed, name, _, start, std, words in load("normal")["cases"]:
        stream = int.from_bytes(blake3(name.encode("utf-8")).digest()[:8], "little")
        for i, word in enumerate(words, start):
            x, y = scalar.philox(seed, stream, i // 4)[i % 4 & 2 :][:2]
            pair = scalar.normal_pair(x, y, scalar.w32(int(std, 16)))
            assert f"{scalar.bits32(pair[i % 2]):08x}" == word, (name, i)


def test_bit_patterns() -> None:
    assert elementwise.f32(0x80000001) == -(2.0**-149)
    assert elementwise.f64(0x3FF8000000000000) == 1.5
    assert type(elementwise.f32(0)) is np.float32
