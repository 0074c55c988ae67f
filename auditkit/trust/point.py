"""Which 32 bytes are a sound Ed25519 public key: the canonical encoding of a point of prime order (RFC 8032, 5.1).

Verifiers disagree about all others: a key of small order accepts one signature for every message, signatures of one
with a small-order part are accepted by some verifiers and not by others, and a second encoding of a point is a second
keyid of one key (Chalkias, Garillot, Nikolaenko, "Taming the many EdDSAs", 2020). Only public values pass through
here, so the time that it takes may depend on them.
"""

from __future__ import annotations

from auditkit.errors import Untrusted

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493  # of the base point, a prime

_D = -121665 * pow(121666, -1, PRIME) % PRIME
_SQRT_MINUS_ONE = pow(2, (PRIME - 1) // 4, PRIME)

_Point = tuple[int, int, int, int]  # X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z
_ZERO: _Point = (0, 1, 1, 0)


def check_point(raw: bytes, what: str) -> None:
    """Untrusted naming `what` and the reason unless `raw` (32 bytes) encodes a point of prime order canonically."""
    if len(raw) != 32:
        raise Untrusted(f"{what}: {len(raw)} bytes, an Ed25519 public key has 32")
    point = _decode(raw, what)
    if _is_zero(_times(8, point)):
        raise Untrusted(f"{what}: a point of small order, for which anyone can sign")
    if not _is_zero(_times(ORDER, point)):
        raise Untrusted(f"{what}: not a point of prime order, about which verifiers disagree")


def _decode(raw: bytes, what: str) -> _Point:
    """RFC 8032, section 5.1.3."""
    number = int.from_bytes(raw, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if y >= PRIME:
        raise Untrusted(f"{what}: not the canonical encoding of a point")
    u, v = (y * y - 1) % PRIME, (_D * y * y + 1) % PRIME
    x = u * pow(v, 3, PRIME) * pow(u * pow(v, 7, PRIME), (PRIME - 5) // 8, PRIME) % PRIME
    if v * x * x % PRIME == PRIME - u:
        x = x * _SQRT_MINUS_ONE % PRIME
    if (v * x * x - u) % PRIME != 0:
        raise Untrusted(f"{what}: not a point of the curve")
    if x == 0 and sign:
        raise Untrusted(f"{what}: not the canonical encoding of a point")
    if x & 1 != sign:
        x = PRIME - x
    return x, y, 1, x * y % PRIME


def _add(p: _Point, q: _Point) -> _Point:
    """The complete addition of RFC 8032, section 5.1.4: also for equal points and for the neutral one."""
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % PRIME, (p[1] + p[0]) * (q[1] + q[0]) % PRIME
    c, d = 2 * p[3] * q[3] * _D % PRIME, 2 * p[2] * q[2] % PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME


def _times(factor: int, point: _Point) -> _Point:
    total = _ZERO
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total


def _is_zero(point: _Point) -> bool:
    return point[0] % PRIME == 0 and (point[1] - point[2]) % PRIME == 0
