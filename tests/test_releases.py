"""Releases: locks that fit what is declared, the page's table, and a check that sees a byte that differs."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
LOCKS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "requirements").glob("*.txt"))}
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[a-z]+\])?(?:>=([0-9.]+))?(?:,<([0-9.]+))?")


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """tools/release.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def declared() -> list[tuple[str, str, str, str]]:
    """Name, extra ("verifier" for none), lower and upper bound of every dependency but our own extras."""
    groups = {"verifier": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    found = []
    for group, requirements in groups.items():
        for requirement in requirements:
            match = _REQUIREMENT.fullmatch(requirement)
            assert match, requirement
            if match[1] != "auditkit-verifier":
                found.append((match[1], group, match[2] or "", match[3] or ""))
    return found


def locked(name: str, lock: str) -> list[str]:
    """The versions of a package in a lock file: several where they depend on Python's."""
    pattern = rf"^{re.escape(name.lower())}(?:\[[a-z]+\])?==(\S+)"
    return re.findall(pattern, LOCKS[lock], flags=re.MULTILINE)


def parts(version: str) -> tuple[int, ...]:
    """A version for comparisons."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_every_locked_version_lies_in_its_range() -> None:
    extras = {"verifier", "data", "registry", "trainer", "dev"}
    for name, group, low, high in declared():
        if group in extras:
            versions = locked(name, "verifier" if group == "verifier" else "dev")
            assert versions, f"{name} is not locked: make lock"
            for version in versions:
                assert parts(low) <= parts(version), (name, version)
                assert not high or parts(version) < parts(high), (name, version)


@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_every_file_of_a_lock_is_named_by_its_digest(lock: str) -> None:
    entries = re.split(r"^(?=[a-z0-9])", LOCKS[lock], flags=re.MULTILINE)[1:]
    assert len(entries) > 20
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==[^\s;]+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry
        assert "://" not in entry


def test_the_page_lists_every_dependency_with_its_range() -> None:
    rows = [
        tuple(cell.strip() for cell in line.strip("| \n").split("|")) for line in PAGE.splitlines() if " | " in line
    ]
    listed = [row for row in rows if len(row) == 6][1:]
    expected = [
        (
            name,
            group,
            low or "-",
            high or "-",
            "yes" if group == "verifier" else "no",
            ", ".join(locked(name, "dev")) or "-",
        )
        for name, group, low, high in declared()
    ]
    assert listed == expected


def test_a_byte_that_differs_is_seen(release: ModuleType) -> None:
    release.require_same({"a": b"x", "b": b"y"}, {"b": b"y", "a": b"x"}, "twice")
    with pytest.raises(release.Wrong, match="twice: b differ"):
        release.require_same({"a": b"x", "b": b"y"}, {"a": b"x", "b": b"z"}, "twice")
    with pytest.raises(release.Wrong, match="twice"):
        release.require_same({"a": b"x"}, {}, "twice")


def test_a_bill_of_materials_without_a_dependency_is_refused(release: ModuleType) -> None:
    names = release.direct()
    assert "numpy" in names and "httpx" in names
    whole = [{"name": name, "version": "1"} for name in names]
    assert release.check_described(_bill(whole)) == len(names)
    with pytest.raises(release.Wrong, match=names[0]):
        release.check_described(_bill(whole[1:]))


def _bill(components: list[dict[str, str]]) -> bytes:
    import json

    return json.dumps({"components": components}).encode()


def test_the_tag_of_a_release_must_name_its_version() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert 'grep -qxF "version = \\"${TAG#v}\\"" pyproject.toml' in workflow
    assert f'\nversion = "{PROJECT["version"]}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for part in ("tools/release.py check", "tools/release.py audit"):
        assert part in workflow
