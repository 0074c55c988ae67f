"""What a server or the line to it may do to one answer, or to all of them."""

from __future__ import annotations

import random

from tests.store.servers import (
    Behaviour,
    Busy,
    Dying,
    Handler,
    flip,
    garbage,
    honest,
    instead,
    ranged,
    redirecting,
    slow,
    web_page,
)

KINDS = (
    "reset", "cut short", "wrong bytes", "shorter file", "longer file", "slow", "status 503", "status 404",
    "wrong range", "redirect in a circle", "redirect away", "no HTTP", "web page",
)  # fmt: skip


def faulty(kind: str, chance: random.Random, always: bool) -> Behaviour:
    """A server whose answers are honest but for one, or all of them."""
    at, count = chance.randrange(14), [0]
    wrong = _wrong(kind, chance)

    def behave(handler: Handler, data: bytes | None) -> None:
        number, count[0] = count[0], count[0] + 1
        if always or number == at:
            return wrong(handler, data)
        return honest(handler, data)

    return behave


def _wrong(kind: str, chance: random.Random) -> Behaviour:
    share = chance.random()

    def at(data: bytes) -> int:
        return int(share * len(data)) if data else 0

    behaviours: dict[str, Behaviour] = {
        "reset": lambda handler, data: handler.cut(),
        "cut short": lambda handler, data: Dying([at(data or b"")])(handler, data),
        "wrong bytes": instead(lambda data: flip(data, at(data)) if data else data),
        "shorter file": instead(lambda data: data[: at(data)]),
        "longer file": instead(lambda data: data + b"\0"),
        "slow": slow(4096, 0.001),
        "status 503": lambda handler, data: Busy([503])(handler, data),
        "status 404": lambda handler, data: honest(handler, None),
        "wrong range": ranged(lambda first, last, total: f"bytes {first}-{last}/{total}", shift=-1),
        "redirect in a circle": redirecting(lambda handler: handler.path),
        "redirect away": redirecting(lambda handler: "/elsewhere" + handler.path),
        "no HTTP": garbage,
        "web page": web_page,
    }
    return behaviours[kind]
