"""Makes the vectors of the elementary ops: inputs around every boundary, and a digest over a sweep of all exponents.

    python -m tests.vectors.make_elementary [FOLDER]

Words are hex, floats never appear; ABOUT says what the fields are.
tests/vectors/test_make_elementary.py makes the files again and compares every byte.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from auditkit.formats.recipe import ScheduleConfig
from auditkit.numerics import float64, normal, permutation, philox, sample, schedule, shuffle
from auditkit.numerics.arrays import F32, F64
from auditkit.numerics.cos import cos
from auditkit.numerics.exp import exp
from auditkit.numerics.log import log
from auditkit.numerics.mixture import Period
from auditkit.numerics.sin import sin

FORMAT = "auditkit/vectors/v1"
SWEEP_FIRST, SWEEP_STRIDE, SWEEP_COUNT = 7, 1 << 12, 1 << 20

_BINARY32 = (
    "a case is [input, output], binary32 bit patterns; sweep: the inputs first, first + stride, .. (count words, as "
    "32-bit integers), digest is BLAKE3 of their outputs one after the other, each 4 bytes, little-endian"
)
ABOUT = {
    "exp": f"section 6.2: {_BINARY32}",
    "log": f"section 6.3: {_BINARY32}",
    "sin": f"section 6.4: {_BINARY32}",
    "cos": f"section 6.4: {_BINARY32}",
    "float64": (
        "section 6.5: exp64, log64, sin64, cos64 hold [input, output], pow_int [b, n, result]; binary64 bit patterns; "
        "n is a decimal"
    ),
    "philox": (
        "section 6.6: raw holds [counter c0 .. c3, key k0 k1, result words 0 .. 3], 32-bit words; blocks holds [seed, "
        "stream, block, the words of this block and of the three after it], the first three 64-bit words"
    ),
    "normal": (
        "section 6.7: a case is [seed, name, stream as a 64-bit word, i, std, elements i, i + 1, ..], std and elements "
        "binary32 bit patterns; digest: BLAKE3 of elements 0 .. 2^20 - 1 of the tensor embedding with seed 0 and std "
        "1, each 4 bytes, little-endian"
    ),
    "shuffle": (
        "section 6.8: a case is [seed, epoch, stream, windows in the order visited], the first three 64-bit words; "
        "digest: BLAKE3 of the order of 100000 windows with seed 3 in epoch 4, each window 8 bytes, little-endian"
    ),
    "permutation": (
        "section 6.8.1: a case is [seed, source, epoch, stream, windows, first place, the windows at this place and "
        "those after it], seed, source, epoch and stream 64-bit words; digest: BLAKE3 of the whole order of 100000 "
        "windows with seed 3, source 1, epoch 4, each window 8 bytes, little-endian"
    ),
    "mixture": (
        "section 6.8.2: a case is [weights, first sequence, [[source, own number] of this sequence and those after it]]"
        "; digest: BLAKE3 of the sources of the 65536 sequences of a period of the weights 40000, 25000, 536, each 8 "
        "bytes, little-endian"
    ),
    "sample": (
        "section 6.8.3: a case is [seed, source, stream, one document in so many, the documents below 10000 that "
        "belong to the sample], the first three 64-bit words"
    ),
    "schedule": (
        "section 6.9: a case is [name, [kind, peak_lr, min_lr, warmup_steps, decay_steps, total_steps], [[step, rate], "
        "..]]; peak_lr and min_lr are binary64 bit patterns, a rate binary32"
    ),
}

SPECIAL = [0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x33800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000]
NANS = [0x7FC00000, 0x7F800001, 0xFFC00001, 0xFFFFFFFF]

SCHEDULES = {
    "cosine": ScheduleConfig("cosine", 0.001, 0.0001, 5, 0, 40),
    "cosine without warm-up": ScheduleConfig("cosine", 0.0006, 0.0, 0, 0, 7),
    "cosine long": ScheduleConfig("cosine", 0.003, 0.00003, 2000, 0, 600000),
    "wsd": ScheduleConfig("wsd", 0.001, 0.0001, 5, 10, 40),
    "wsd without decay": ScheduleConfig("wsd", 0.02, 0.0, 3, 0, 20),
}


def words_of(values: F32) -> list[int]:
    """Bit patterns of float32 values."""
    return [int(w) for w in values.reshape(-1).view(np.uint32)]


def f32_of(words: Iterable[int]) -> F32:
    """Float32 values with these bit patterns."""
    return np.array(list(words), np.uint32).view(np.float32)


def f64_of(words: Iterable[int]) -> F64:
    """Float64 values with these bit patterns."""
    return np.array(list(words), np.uint64).view(np.float64)


def around(values: Iterable[float], reach: int = 1) -> list[int]:
    """The binary32 words next to these positive numbers: nearest, and `reach` on either side."""
    nearest = words_of(np.array(list(values), np.float32))
    return [w + d for w in nearest for d in range(-reach, reach + 1)]


def both_signs(words: Iterable[int]) -> list[int]:
    """Each word, then each with the sign bit set."""
    positive = list(words)
    return positive + [w | 0x80000000 for w in positive]


def random_words(count: int, stream: int) -> list[int]:
    """`count` words of all patterns, from Philox with seed 0."""
    return [int(w) for w in philox.philox(0, stream, 0, -(-count // 4)).reshape(-1)[:count]]


def exp_inputs() -> list[int]:
    """Ties of the reduction, both ends of the range, and where a block changes its way of scaling."""
    ties = [abs(k + 0.5) * 0.6931471805599453 for k in (0, 1, 2, 3, 10, 63, 64, 86, 124, 125, 126, 127, 128, 148, 149)]
    ends = [44.0, 87.33654, 88.72283, 89.0, 103.27893, 103.97208, 105.0, 200.0]
    inside = [int(w) % 0x02C00000 + 0x40000000 for w in random_words(100, 1)]
    return both_signs(SPECIAL + around(ties) + around(ends) + inside) + NANS + random_words(60, 2)


def log_inputs() -> list[int]:
    """Where the mantissa range begins, around 1, every 8th exponent, subnormals."""
    edges = around([0.7071067811865476, 1.4142135623730951, 1.0, 2.0, 0.5], reach=3)
    subnormal = [1 << i for i in range(0, 23, 3)] + [(1 << i) - 1 for i in range(2, 24, 3)]
    binades = [(field << 23) | 0x3504F3 for field in range(0, 255, 8)]
    return both_signs(SPECIAL) + edges + subnormal + binades + NANS + [w & 0x7FFFFFFF for w in random_words(150, 3)]


def angle_inputs() -> list[int]:
    """Multiples of pi/4, the number nearest to a multiple of pi/2 (16367173 2^72), every 8th exponent."""
    multiples = [k * 0.7853981633974483 for k in (1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 1000, 12345, 1048576)]
    hard = around([16367173.0 * 2.0**72, 3.0e38, 16777216.0, 2.0**-12])
    binades = [(field << 23) | 0x490FDB for field in range(0, 255, 8)]
    return both_signs(SPECIAL + around(multiples) + hard + binades) + NANS + random_words(150, 4)


def sweep_digest(op: Callable[[F32], F32]) -> str:
    """BLAKE3 of the outputs for every 4096th word."""
    words = np.arange(SWEEP_COUNT, dtype=np.uint64) * np.uint64(SWEEP_STRIDE) + np.uint64(SWEEP_FIRST)
    out = op(words.astype(np.uint32).view(np.float32))
    return blake3(out.astype("<f4").tobytes()).hexdigest()


def binary32(op: Callable[[F32], F32], inputs: list[int]) -> dict[str, Any]:
    """Cases [input, output] and the sweep of one binary32 op."""
    outputs = words_of(op(f32_of(inputs)))
    return {
        "sweep": {
            "count": SWEEP_COUNT,
            "digest": sweep_digest(op),
            "first": f"{SWEEP_FIRST:08x}",
            "stride": f"{SWEEP_STRIDE:08x}",
        },
        "cases": [[f"{x:08x}", f"{y:08x}"] for x, y in zip(inputs, outputs, strict=True)],
    }


def unary64(op: Callable[[F64], F64], inputs: F64) -> list[list[str]]:
    """Cases [input, output] of one binary64 function."""
    pairs = zip(inputs.view(np.uint64), op(inputs).view(np.uint64), strict=True)
    return [[f"{int(x):016x}", f"{int(y):016x}"] for x, y in pairs]


def binary64() -> dict[str, Any]:
    """exp64, log64, sin64, cos64 and pow_int."""
    unit = [(a << 32 | b) >> 11 for a, b in zip(random_words(80, 5), random_words(80, 6), strict=True)]
    u = np.array(unit, np.float64) * 2.0**-53  # (80,) in [0, 1)
    ends = [0.0, -0.0, 1.0, -1.0, 709.782712893384, 709.7827128933841, -708.4, -745.13, -745.14, 5e-324]
    exponents = np.concatenate([ends, [np.inf, -np.inf], u - 0.5, (u - 0.5) * 1400.0])
    positive = [0.0, -0.0, 5e-324, 2.2250738585072014e-308, 0.7071067811865475, 0.7071067811865476, 1.0, 2.0, 1e4, 5e5]
    logs = np.concatenate([positive, [1.7976931348623157e308, np.inf, -1.0], u + 0.5, u * 1e6, u * 1e-308])
    turns = np.rint(u * 2.0**20) * 1.5707963267948966  # next to multiples of pi/2
    edges = [0.0, -0.0, 5e-324, 0.7853981633974483, 0.7853981633974484, float64.MAX_ANGLE, -float64.MAX_ANGLE]
    angles = np.concatenate([edges, turns, (u - 0.5) * 20.0, u * float64.MAX_ANGLE])
    powers = [(b, n) for b in (0.9, 0.95, 0.999) for n in (0, 1, 2, 3, 10, 255, 256, 257, 1000, 65536, 2**24 + 1)]
    return {
        "exp64": unary64(float64.exp64, exponents),
        "log64": unary64(float64.log64, logs),
        "sin64": unary64(float64.sin64, angles),
        "cos64": unary64(float64.cos64, angles),
        "pow_int": [[hex64(b), n, hex64(float64.pow_int(b, n))] for b, n in powers],
    }


def hex64(value: float) -> str:
    """The 16 hex digits of a binary64 number."""
    return f"{int(np.array(value, np.float64).view(np.uint64)):016x}"


def random_blocks() -> dict[str, Any]:
    """Philox: raw counters and keys, and blocks of streams, at 32- and 64-bit boundaries."""
    counters = [(0, 0, 0, 0), (0xFFFFFFFF,) * 4, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (1, 0, 0, 0)]
    keys = [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0xA4093822, 0x299F31D0), (0, 1)]
    raw = [philox.philox4x32(np.array([c], np.uint32), k)[0] for c, k in zip(counters, keys, strict=True)]
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 2**32 - 2), (2**64 - 1, 2**64 - 1, 2**64 - 5), (2**53 - 1, 7, 9)]
    return {
        "raw": [[hex32s(c), hex32s(k), hex32s(w)] for c, k, w in zip(counters, keys, raw, strict=True)],
        "blocks": [[*map(hex_u64, place), hex32s(philox.philox(*place, 4).reshape(-1))] for place in places],
    }


def hex_u64(value: int) -> str:
    """The 16 hex digits of an unsigned integer."""
    return f"{value:016x}"


def hex32s(words: Iterable[int]) -> list[str]:
    """32-bit words in hex."""
    return [f"{int(w):08x}" for w in words]


def normals() -> dict[str, Any]:
    """The first elements, and some far inside, of named tensors."""
    places = [
        (0, "embedding", 0, 16, 0x3F800000),
        (1, "layers.0.attention.query", 0, 9, 0x3CA3D70A),
        (2**53 - 1, "\u00fcber", 3, 14, 0x3CA3D70A),
        (0, "embedding", 2**34 + 5, 2**34 + 17, 0x3F800000),
    ]
    cases = []
    for seed, name, start, stop, std in places:
        values = normal.normal_slice(seed, name, start, stop, f32_of([std])[0])
        cases.append([seed, name, f"{normal.stream_of(name):016x}", start, f"{std:08x}", hex32s(words_of(values))])
    million = normal.normal(0, "embedding", (1 << 20,), np.float32(1))
    digest = blake3(million.astype("<f4").tobytes()).hexdigest()
    return {"digest": digest, "cases": cases}


def window_orders() -> dict[str, Any]:
    """Small orders in full."""
    places = [(0, 0, 0), (0, 0, 1), (0, 0, 12), (0, 1, 12), (1, 0, 12), (2**64 - 1, 2**64 - 1, 9)]
    cases = [
        [*map(hex_u64, (seed, epoch, shuffle.stream_of(epoch))), shuffle.window_order(seed, epoch, n).tolist()]
        for seed, epoch, n in places
    ]
    digest = blake3(shuffle.window_order(3, 4, 100_000).astype("<i8").tobytes()).hexdigest()
    return {"digest": digest, "cases": cases}


def permutations() -> dict[str, Any]:
    """Small orders in full, and places of large ones."""
    places = [(0, 0, 0, n, 0, n) for n in (1, 2, 3, 4, 5, 15, 16, 17)]
    places += [(2**64 - 1, 2**64 - 1, 2**64 - 1, 9, 0, 9), (0, 0, 1, 9, 0, 9), (0, 1, 0, 9, 0, 9), (1, 0, 0, 9, 0, 9)]
    places += [(7, 2, 5, 10**9, 999_999_990, 10), (7, 2, 5, 2**40, 2**40 - 6, 6), (7, 2, 5, 2**38 + 1, 0, 6)]
    cases: list[Any] = []
    for seed, source, epoch, windows, first, count in places:
        order = permutation.permute(seed, source, epoch, windows, np.arange(first, first + count, dtype=np.int64))
        words = map(hex_u64, (seed, source, epoch, permutation.stream_of(source, epoch)))
        cases.append([*words, windows, first, order.tolist()])
    whole = permutation.permute(3, 1, 4, 100_000, np.arange(100_000, dtype=np.int64))
    return {"digest": blake3(whole.astype("<i8").tobytes()).hexdigest(), "cases": cases}


def mixtures() -> dict[str, Any]:
    """Whole periods of small sums, and sequences far into a run."""
    places: list[tuple[list[int], int, int]] = [([1], 0, 3), ([5], 2**53, 2), ([3, 1], 0, 8), ([1, 3], 0, 8)]
    places += [([1, 1, 1], 0, 6), ([2, 2, 2], 0, 6), ([4, 1, 1, 1], 0, 7), ([6, 10, 15], 0, 31), ([3, 1], 10**12, 5)]
    places += [([1000, 1], 998, 5), ([1, 1000], 998, 5), ([65535, 1], 2**40 - 3, 6)]
    cases: list[Any] = []
    for weights, first, count in places:
        source, own = Period.of(weights).drawn(first, first + count)
        cases.append([weights, first, [list(pair) for pair in zip(source.tolist(), own.tolist(), strict=True)]])
    digest = blake3(Period.of([40000, 25000, 536]).source.astype("<i8").tobytes()).hexdigest()
    return {"digest": digest, "cases": cases}


def samples() -> dict[str, Any]:
    """Samples of the first documents of a source."""
    cases = []
    for seed, source, one_in in [
        (0, 0, 1000),
        (5, 0, 1000),
        (5, 3, 1000),
        (2**64 - 1, 2**64 - 1, 777),
        (0, 0, 1 << 20),
    ]:
        chosen = np.flatnonzero(sample.sampled(seed, source, 0, 10_000, one_in)).tolist()
        cases.append([*map(hex_u64, (seed, source, sample.stream_of(source))), one_in, chosen])
    return {"cases": cases}


def rates() -> dict[str, Any]:
    """Learning rates at and around every change of phase."""
    cases = []
    for name, s in SCHEDULES.items():
        turns = (0, s.warmup_steps, (s.warmup_steps + s.total_steps) // 2, s.total_steps - s.decay_steps, s.total_steps)
        steps = sorted({t + d for t in turns for d in (-2, -1, 0, 1, 2) if t + d >= 0})
        fields = [s.kind, hex64(s.peak_lr), hex64(s.min_lr), s.warmup_steps, s.decay_steps, s.total_steps]
        values = [words_of(np.array([schedule.learning_rate(s, t)], np.float32))[0] for t in steps]
        cases.append([name, fields, [[t, f"{w:08x}"] for t, w in zip(steps, values, strict=True)]])
    return {"cases": cases}


def vectors() -> dict[str, dict[str, Any]]:
    """Every file by the name of its op."""
    made = {
        "exp": binary32(exp, exp_inputs()),
        "log": binary32(log, log_inputs()),
        "sin": binary32(sin, angle_inputs()),
        "cos": binary32(cos, angle_inputs()),
        "float64": binary64(),
        "philox": random_blocks(),
        "normal": normals(),
        "shuffle": window_orders(),
        "permutation": permutations(),
        "mixture": mixtures(),
        "sample": samples(),
        "schedule": rates(),
    }
    return {op: {"format": FORMAT, "op": op, "about": f"SPEC.md {ABOUT[op]}", **fields} for op, fields in made.items()}


def encode(vector: dict[str, Any]) -> bytes:
    """JSON with one case a line, so that a change of bits shows as the lines that changed."""
    fields = []
    for key, value in vector.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row) for row in value)
            fields.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            fields.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode("ascii")


def main(folder: Path) -> None:
    """Write every file into the folder."""
    for op, vector in vectors().items():
        (folder / f"{op}.json").write_bytes(encode(vector))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
