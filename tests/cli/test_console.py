"""What publishers wrote cannot steer a terminal; colour and bars need a terminal that has them."""

from __future__ import annotations

import io

import pytest

from auditkit.cli import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_escaped() -> None:
    assert console.printable("a\x1b[2J\r\nb\u202e\x00") == "a\\x1b[2J\\r\\nb\\u202e\\x00"
    assert console.printable("na\u00efve \u65e5\u672c") == "na\u00efve \u65e5\u672c"
    assert console.printable("\udcff") == "\\udcff"


def test_live_and_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert console.is_coloured(Terminal())
    assert not console.is_coloured(io.StringIO())
    assert not console.is_live(None)
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.is_live(Terminal())
    assert not console.is_coloured(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not console.is_live(Terminal())
