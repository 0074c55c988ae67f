"""Policy files for tests, from parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from auditkit.formats.note import COSIGNATURE, ED25519, NoteKey
from auditkit.trust.keys import PrivateKey

KEYS = {name: PrivateKey(bytes([number]) * 32).public for number, name in enumerate(("alice", "bob", "carol"))}
PUBLISHER = NoteKey("example.org/run", ED25519, PrivateKey(bytes([9]) * 32).public.raw)
WITNESSES = [
    NoteKey(f"witness.example/{number}", COSIGNATURE, PrivateKey(bytes([10 + number]) * 32).public.raw)
    for number in range(3)
]


def head(**values: Any) -> str:
    """The keys outside of all tables; None leaves one out."""
    found = {"format": "auditkit/policy/v1", "threshold": 2, **values}
    return "".join(f"{key} = {_toml(value)}\n" for key, value in found.items() if value is not None)


def auditor(name: str, pem: str | None = None) -> str:
    """An [[auditor]] table."""
    text = KEYS[name].pem().decode("ascii") if pem is None else pem
    return f'[[auditor]]\nname = {_toml(name)}\nkey = """{text}"""\n'


def auditors(*names: str) -> str:
    """Some of them."""
    return "".join(map(auditor, names or KEYS))


def excluded(keyid: str, reason: str = "it was stolen") -> str:
    """An [[excluded]] table."""
    return f"[[excluded]]\nkeyid = {_toml(keyid)}\nreason = {_toml(reason)}\n"


def log(values: Mapping[str, Any] | None = None) -> str:
    """The [log] table."""
    listed = [key.text for key in WITNESSES]
    found = {"publisher": PUBLISHER.text, "witnesses": listed, "witness_threshold": 2, **(values or {})}
    return "[log]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in found.items() if value is not None)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


SMALL = head() + auditors()
LARGE = head(families=2, automation=True) + log() + auditors() + excluded("a" * 64)
