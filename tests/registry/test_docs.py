"""docs/registry.md says what is so: every limit with its value, every route, every option."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import typer

from auditkit.cli.registry import app
from auditkit.registry.limits import REGISTRY_LIMITS
from tests.conftest import ROOT
from tests.registry.inprocess import Service

TEXT = (ROOT / "docs" / "registry.md").read_text(encoding="utf-8")


def test_every_limit_is_listed_with_its_value() -> None:
    listed = dict(re.findall(r"^\| ([a-z_0-9]+) \| ([0-9.]+) \|$", TEXT, flags=re.MULTILINE))
    values = {field.name: getattr(REGISTRY_LIMITS, field.name) for field in fields(REGISTRY_LIMITS)}
    assert {name: float(text) for name, text in listed.items()} == {name: float(v) for name, v in values.items()}


def test_every_route_is_described(service: Service) -> None:
    from auditkit.registry.routes import Routes

    for route in Routes(service.registry).all():
        path = route.path.replace("{path:path}", "checkpoint").replace("{envelope}", "{sha256}")
        assert f"`{path}`" in TEXT or f"POST {path}`" in TEXT, path


def test_every_option_of_serve_is_described() -> None:
    command: Any = typer.main.get_command(app)
    options = {name for param in command.commands["serve"].params for name in param.opts if name.startswith("--")}
    assert {name for name in options if f"`{name}" not in TEXT} <= {"--cache-dir", "--help"}
