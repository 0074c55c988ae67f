"""Floating-point numbers as their bit patterns in text: "f32:3f800000", "f64:3ff0000000000000".

JSON numbers are no place for them: two writers print 1e-7 in two ways, and 0.1 is not the number it says.
"""

from __future__ import annotations

import math
import re
import struct

from auditkit.errors import BadArtifact

MAX_F32 = (2.0 - 2.0**-23) * 2.0**127

_F32 = re.compile(r"f32:[0-9a-f]{8}")
_F64 = re.compile(r"f64:[0-9a-f]{16}")


def to_f32(value: float) -> float:
    """`value` rounded once to the nearest binary32 number (ties to even); BadArtifact when not finite in binary32."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        rounded = math.inf
    if not math.isfinite(rounded):
        raise BadArtifact(f"{value!r} is not a finite binary32 number")
    return rounded


def is_f32(value: float) -> bool:
    """Whether binary32 holds exactly this number, and it is finite."""
    return math.isfinite(value) and abs(value) <= MAX_F32 and to_f32(value) == value


def f32_bits(value: float) -> int:
    """The 32-bit pattern of a finite number that binary32 holds exactly; BadArtifact otherwise."""
    if not is_f32(value):
        raise BadArtifact(f"{float(value)!r} is not exactly a binary32 number", hint="round it with to_f32 first")
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


def f32_from_bits(bits: int) -> float:
    """The number of a 32-bit pattern; BadArtifact when it is infinite or not a number."""
    check_f32_bits(bits, "binary32 pattern")
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def check_f32_bits(bits: int, what: str) -> int:
    """`bits` itself when it is the pattern of a finite binary32 number; BadArtifact naming `what` otherwise."""
    if type(bits) is not int or not 0 <= bits < 1 << 32:
        raise BadArtifact(f"{what}: not a 32-bit pattern")
    if bits & 0x7F800000 == 0x7F800000:
        raise BadArtifact(f"{what}: f32:{bits:08x} is not finite")
    return bits


def f32_text(value: float) -> str:
    """ "f32:" and eight hexadecimal digits; BadArtifact unless finite and exactly representable."""
    return f"f32:{f32_bits(value):08x}"


def f64_text(value: float) -> str:
    """ "f64:" and sixteen hexadecimal digits; BadArtifact unless finite."""
    if not math.isfinite(value):
        raise BadArtifact(f"{value!r} is not a finite binary64 number")
    return f"f64:{struct.unpack('<Q', struct.pack('<d', value))[0]:016x}"


def parse_f32(text: object, what: str = "number") -> float:
    """The number of an "f32:........" text (lower-case digits only); BadArtifact naming `what` otherwise."""
    return f32_from_bits(parse_f32_bits(text, what))


def parse_f32_bits(text: object, what: str = "number") -> int:
    """The 32-bit pattern of an "f32:........" text; BadArtifact naming `what` when malformed or not finite."""
    if not isinstance(text, str) or _F32.fullmatch(text) is None:
        raise BadArtifact(f'{what}: not a binary32 bit pattern ("f32:" and 8 lower-case hexadecimal digits)')
    return check_f32_bits(int(text[4:], 16), what)


def parse_f64(text: object, what: str = "number") -> float:
    """The number of an "f64:................" text; BadArtifact naming `what` when malformed or not finite."""
    if not isinstance(text, str) or _F64.fullmatch(text) is None:
        raise BadArtifact(f'{what}: not a binary64 bit pattern ("f64:" and 16 lower-case hexadecimal digits)')
    value: float = struct.unpack("<d", struct.pack("<Q", int(text[4:], 16)))[0]
    if not math.isfinite(value):
        raise BadArtifact(f"{what}: {text} is not finite")
    return value
