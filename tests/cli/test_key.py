"""`auditkit key`: nothing that it prints or leaves behind gives a private key away."""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from auditkit.formats import pem
from auditkit.trust.keys import PrivateKey, load_private, load_public
from tests.cli.conftest import Cli, environment
from tests.trust.test_point import CASES

SEED = bytes(range(32))
KEY = PrivateKey(SEED)
NO_MODES = pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
OPTIONAL = pytest.mark.optional("Windows has access lists in place of modes")

# What a private key looks like in any of its forms: hex, base64 of the seed, base64 of the PKCS #8 file.
SECRETS = [SEED.hex(), base64.b64encode(SEED).decode(), KEY.pem().decode().splitlines()[1][24:56]]


def shown(text: str) -> bool:
    """Whether a text holds a piece of the private key."""
    return any(secret[i : i + 12].lower() in text.lower() for secret in SECRETS for i in range(len(secret) - 12))


Give = Callable[[bytes], None]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Let the command read these bytes."""

    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return give


def test_the_test_would_see_a_private_key() -> None:
    assert shown(KEY.pem().decode())
    assert shown(f"x{SEED.hex().upper()}x")
    assert not shown(KEY.public.pem().decode())


@pytest.mark.parametrize("form", ["pem", "CRLF", "hex", "upper-case hex", "hex without a line end"])
def test_a_private_key_comes_from_stdin(main: Cli, tmp_path: Path, stdin: Give, form: str) -> None:
    texts = {
        "pem": KEY.pem(),
        "CRLF": KEY.pem().replace(b"\n", b"\r\n"),
        "hex": SEED.hex().encode() + b"\n",
        "upper-case hex": SEED.hex().upper().encode() + b"\n",
        "hex without a line end": SEED.hex().encode(),
    }
    stdin(texts[form])
    done = main("key", "import", "-", tmp_path / "key.pem")
    assert (done.code, done.stderr) == (0, "")
    assert KEY.public.keyid in done.stdout
    assert load_private(tmp_path / "key.pem").pem() == KEY.pem()
    assert not shown(done.stdout)


def test_a_public_key_comes_from_stdin(main: Cli, tmp_path: Path, stdin: Give) -> None:
    stdin(KEY.public.pem())
    assert main("key", "import", "-", tmp_path / "key.pem").code == 0
    assert load_public(tmp_path / "key.pem") == KEY.public


@pytest.mark.parametrize(
    ("data", "code", "error"),
    [
        (b"", 4, "stdin: neither PEM nor the 64 hexadecimal digits of a seed"),
        (SEED.hex().encode()[:-1], 4, "stdin: neither PEM nor the 64 hexadecimal digits of a seed"),
        (SEED.hex().encode() + b"00", 4, "stdin: neither PEM nor the 64 hexadecimal digits of a seed"),
        (SEED, 4, "stdin: neither PEM nor the 64 hexadecimal digits of a seed"),
        (b"\xff" * 100_000, 4, "stdin: neither PEM nor the 64 hexadecimal digits of a seed"),
        (KEY.pem()[:60], 4, "stdin: the PEM block has no end (truncated?)"),
        (KEY.pem() + b" " * 20_000, 4, "stdin: 16385 bytes, at most 16384 are allowed"),
    ],
)
def test_anything_else_from_stdin_is_refused_without_being_shown(
    main: Cli, tmp_path: Path, stdin: Give, data: bytes, code: int, error: str
) -> None:
    stdin(data)
    done = main("key", "import", "-", tmp_path / "key.pem", "--json")
    assert (done.code, done.stderr.splitlines()[0]) == (code, f"error: {error}")
    assert not shown(done.stdout + done.stderr)
    assert not (tmp_path / "key.pem").exists()


def test_a_closed_stdin_is_a_usage_error(main: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main("key", "import", "-", tmp_path / "key.pem").code == 2


@pytest.mark.parametrize("options", [[], ["--json"], ["--name", "example.org/a"]])
def test_showing_a_private_file_shows_its_public_half_only(main: Cli, tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "key.pem"
    main("key", "import", "-", path)
    path.write_bytes(KEY.pem())
    path.chmod(0o600)
    done = main("key", "show", path, *options)
    assert done.code == 0
    assert KEY.public.keyid in done.stdout
    assert not shown(done.stdout + done.stderr)


def test_what_show_prints_is_a_public_key_file(main: Cli, tmp_path: Path) -> None:
    assert main("key", "new", tmp_path / "key.pem").code == 0
    text = main("key", "show", tmp_path / "key.pem", "--name", "caf\u00e9/log").stdout
    (tmp_path / "key.pub").write_text(text, encoding="utf-8")
    assert load_public(tmp_path / "key.pub") == load_private(tmp_path / "key.pem").public


def test_json_holds_the_same(main: Cli, tmp_path: Path) -> None:
    made = json.loads(main("key", "new", tmp_path / "key.pem", "--json").stdout)
    seen = json.loads(main("key", "show", tmp_path / "key.pem", "--json").stdout)
    assert {name: made[name] for name in seen} == seen
    assert made["keyid"] == load_private(tmp_path / "key.pem").public.keyid
    assert (made["verdict"], made["code"], made["private"]) == ("MATCH", 0, True)


@OPTIONAL
@NO_MODES
def test_a_new_key_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "auditkit", "key", "new", str(tmp_path / "key.pem")]
    before = os.umask(0)
    try:
        subprocess.run(command, env=environment(tmp_path / "cache"), check=True, capture_output=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600


@OPTIONAL
@NO_MODES
@pytest.mark.parametrize("arguments", [["show", "KEY"], ["import", "KEY", "NEW"]])
def test_a_private_key_that_others_can_read_is_not_used(main: Cli, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "key.pem").write_bytes(KEY.pem())
    (tmp_path / "key.pem").chmod(0o644)
    names = {"KEY": tmp_path / "key.pem", "NEW": tmp_path / "new.pem"}
    done = main("key", *(names.get(word, word) for word in arguments))
    assert (done.code, done.stdout) == (8, "")
    assert "hint: chmod 600 " in done.stderr
    assert not (tmp_path / "new.pem").exists()


@pytest.mark.parametrize("kind", ["encrypted", "OpenSSH"])
def test_keys_in_other_wrappings_are_unsupported(main: Cli, tmp_path: Path, kind: str) -> None:
    key, none = Ed25519PrivateKey.from_private_bytes(SEED), serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8 if kind == "encrypted" else serialization.PrivateFormat.OpenSSH
    wrapping = serialization.BestAvailableEncryption(b"secret") if kind == "encrypted" else none
    (tmp_path / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, wrapping))
    (tmp_path / "key.pem").chmod(0o600)
    for command in (["show", tmp_path / "key.pem"], ["import", tmp_path / "key.pem", tmp_path / "new.pem"]):
        done = main("key", *command)
        assert (done.code, done.stdout) == (6, "")
        assert "which is not supported" in done.stderr
        assert "hint: " in done.stderr


@pytest.mark.parametrize("text", CASES["small_order"] + CASES["non_canonical"])
def test_a_key_for_which_others_could_sign_is_neither_imported_nor_trusted(
    main: Cli, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "weak.pem"
    path.write_bytes(pem.encode(pem.PUBLIC, pem.spki(bytes.fromhex(text))))
    for command in (["key", "show", path], ["key", "import", path, tmp_path / "new.pem"]):
        done = main(*command)
        assert (done.code, done.stdout) == (8, "")
        assert done.stderr.startswith("error: public key: ")
    assert main("attest", "check", tmp_path, "--key", path).code == 8
    assert not (tmp_path / "new.pem").exists()
