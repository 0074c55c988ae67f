"""What a night works with: the beacon and its fallback, the key and where it comes from."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path

import pytest

from auditkit.audit import drand
from auditkit.audit.night_tools import KEY_VARIABLE, Setting, find_key, make_tools
from auditkit.audit.nightly import Night, Plan, nightly
from auditkit.errors import AuditkitError, BadArtifact, Unsupported, UsageError
from auditkit.store.progress import Silent
from auditkit.trust import beacon
from auditkit.trust.beacon import Origin
from auditkit.trust.keys import new_key, save_private
from auditkit.verdict import Verdict
from tests.audit import signed_runs
from tests.audit.test_drand import NUMBER, PATH, RANDOMNESS, SIGNATURE, answer
from tests.replay import make_run
from tests.store import servers
from tests.store.tools import FakeClock, Story


@pytest.fixture
def clock() -> FakeClock:
    """A clock at the moment of the round that the relays of these tests know."""
    made = FakeClock()
    made.start = drand.QUICKNET.time_of(NUMBER)
    return made


@pytest.fixture(autouse=True)
def own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's: no cache, no proxies, no key."""
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind}_proxy".upper(), raising=False)


def test_a_night_with_everything_real(honest: Path, tmp_path: Path, clock: FakeClock) -> None:
    with servers.serve(servers.honest, {PATH: answer()}) as relay:
        setting = Setting(run=str(honest), device="cpu", threads=1, relays=[relay.url])
        tools = make_tools(setting, new_key(), Silent(), Story(), clock=clock)
        night = nightly(Plan(count=2), tools, tmp_path / "nights")
    assert night.verdict is Verdict.MATCH
    found = json.loads((night.folder / "result.json").read_text(encoding="ascii"))
    assert found["assignment"]["beacon"]["value"] == RANDOMNESS
    assert (found["round"]["round"], found["round"]["signature"]) == (NUMBER, SIGNATURE)
    assert found["round"]["signature_verified"] is False
    attestation = json.loads((night.folder / found["attestations"][0]).read_bytes())
    assert attestation["signatures"][0]["keyid"] == found["keyid"]


def test_a_log_that_is_rewritten_between_two_nights_fails_the_second_with_both_checkpoints_kept(
    parts: make_run.Parts, tmp_path: Path, clock: FakeClock
) -> None:
    run, base = tmp_path / "run", tmp_path / "nights"
    setting = Setting(run=str(run), device="cpu", beacon="5a" * 16, data=base / "data")

    def night() -> Night:
        clock.time += 1
        return nightly(Plan(count=1), make_tools(setting, None, Silent(), Story(), clock=clock), base)

    signed_runs.sign(make_run.publish(make_run.train_with(parts, wrong_step=3), run))
    first = night()
    shutil.rmtree(run)
    signed_runs.sign(make_run.publish(parts, run))
    second = night()
    assert first.report is not None and first.report.steps
    assert second.verdict is Verdict.UNTRUSTED
    found = json.loads((second.folder / "result.json").read_text(encoding="ascii"))
    assert (found["code"], found["steps"]) == (8, [])
    assert "two histories" in found["message"]
    kept = {path.name: path.read_text("utf-8") for path in (second.folder / "log" / "evidence").rglob("*.txt")}
    assert kept["smaller.txt"] != kept["larger.txt"]
    assert all(text.startswith("auditkit-run/") for name, text in kept.items() if name in ("smaller.txt", "larger.txt"))


def test_without_a_relay_the_date_is_the_beacon_and_the_result_says_so(
    honest: Path, tmp_path: Path, clock: FakeClock
) -> None:
    with servers.serve(lambda handler, data: handler.whole(b"busy", 503), {}) as relay:
        setting = Setting(run=str(honest), device="cpu", relays=[relay.url])
        night = nightly(Plan(count=1), make_tools(setting, None, Silent(), Story(), clock=clock), tmp_path)
    assert night.assigned is not None
    today = datetime.datetime.fromtimestamp(clock.start, datetime.UTC).date()
    assert night.assigned.beacon == beacon.of_date(today)
    assert night.verdict is Verdict.MATCH
    found = json.loads((night.folder / "result.json").read_text(encoding="ascii"))
    assert "503" in found["round"]["failed"]
    assert any("could foresee" in note for note in found["notes"])


def test_a_given_beacon_asks_no_relay(honest: Path, clock: FakeClock) -> None:
    with servers.serve(servers.honest, {}) as relay:
        setting = Setting(run=str(honest), device="cpu", beacon="5a" * 16, relays=[relay.url])
        found, details = make_tools(setting, None, Silent(), Story(), clock=clock).beacon()
        assert relay.asked == []
    assert (found.origin, found.text, details) == (Origin.GIVEN, "5a" * 16, {})


def test_a_beacon_that_is_none_is_a_usage_error_before_anything_is_done() -> None:
    with pytest.raises(UsageError, match="beacon"):
        make_tools(Setting(beacon="xyz"), None, Silent(), Story())


def test_the_key_of_a_file_wins_over_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = new_key(), new_key()
    save_private(tmp_path / "first.pem", first)
    monkeypatch.setenv(KEY_VARIABLE, second.pem().decode("ascii"))
    from_file, from_environment = find_key(tmp_path / "first.pem"), find_key(None)
    assert from_file is not None and from_file.public == first.public
    assert from_environment is not None and from_environment.public == second.public


@pytest.mark.parametrize("change", [str.strip, lambda text: text.replace("\n", "\r\n"), lambda text: f"\n{text}\n\n"])
def test_a_secret_may_lose_its_line_ends(change: object, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    monkeypatch.setenv(KEY_VARIABLE, change(key.pem().decode("ascii")))  # type: ignore[operator]
    found = find_key(None)
    assert found is not None and found.public == key.public


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_secret_is_no_key(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, text)
    assert find_key(None) is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("secret", BadArtifact),
        ("\udcff", BadArtifact),
        (new_key().public.pem().decode("ascii"), UsageError),
        (new_key().pem().decode("ascii").replace("PRIVATE", "ENCRYPTED PRIVATE"), Unsupported),
    ],
)
def test_a_secret_that_is_no_key_is_refused_and_never_shown(
    text: str, error: type[AuditkitError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, text)
    with pytest.raises(error, match=KEY_VARIABLE) as caught:
        find_key(None)
    shown = f"{caught.value.message} {caught.value.hint}"
    assert not any(len(line) > 30 and line in shown for line in text.splitlines())
    assert "secret" not in shown
