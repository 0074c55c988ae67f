"""`auditkit key`: make the key that signs attestations, show what others need of it, take one from elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.command import ComputingCommand
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import BadArtifact, UsageError
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.trust.keys import PrivateKey, PublicKey

FORMAT = "auditkit/key/v1"
STDIN = "-"

app = typer.Typer(help="Make, show or import a key that signs attestations.", rich_markup_mode=None)

Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Also print the key as the vkey of a log of this name.")
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the key, PEM.")]
NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file to make; none is ever overwritten.")]
Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A PEM file, or - for PEM or a seed in hex from stdin.")]


@app.command("new", cls=ComputingCommand, short_help="Make a private key.")
def new(file: NewFile, name: Name = None, json: options.Json = False) -> Outcome:
    """Make a private key: an Ed25519 key in a PEM file that only you can read.

    Whoever has the file can sign as you, and nobody can make it again: keep it to yourself, and keep a copy.
    """
    from auditkit.trust.keys import new_key, save_private

    key = new_key()
    text = _vkey(key.public, name)
    save_private(file, key)
    return _shown(key.public, text, json, made=file, private=True)


@app.command("show", cls=ComputingCommand, short_help="Show key id and public key of a key file.")
def show(file: File, name: Name = None, json: options.Json = False) -> Outcome:
    """Show the key id and the public key of a private or a public key file; nothing of it is secret.

    The output is itself a PEM file of the public key.
    """
    from auditkit.trust.keys import PrivateKey, load

    found = load(file)
    key = found.public if isinstance(found, PrivateKey) else found
    return _shown(key, _vkey(key, name), json)


@app.command("import", cls=ComputingCommand, short_help="Take a key that was made elsewhere.")
def import_key(source: Source, file: NewFile, name: Name = None, json: options.Json = False) -> Outcome:
    """Check a key that was made elsewhere, for example by openssl, and write it into a file of its own.

    SOURCE is a PEM file with a private key (PKCS #8) or a public one; from stdin a private key may also come as the
    64 hexadecimal digits of its seed.
    """
    from auditkit.trust.keys import PrivateKey, load, save_private, save_public

    key = _from_stdin() if source == STDIN else load(Path(source))
    if isinstance(key, PrivateKey):
        text = _vkey(key.public, name)
        save_private(file, key)
        return _shown(key.public, text, json, made=file, private=True)
    text = _vkey(key, name)
    save_public(file, key)
    return _shown(key, text, json, made=file)


def _from_stdin() -> PrivateKey | PublicKey:
    """A key of either kind. Of what comes in nothing is ever printed."""
    from auditkit.formats import pem
    from auditkit.formats.limits import LIMITS
    from auditkit.trust.keys import PrivateKey, PublicKey

    if sys.stdin is None:
        raise UsageError("stdin is closed, no key can come from there")
    data = sys.stdin.buffer.read(LIMITS.key_file_bytes + 1)
    seed = data.strip()
    if b"-----" not in data and len(seed) == 64 and all(c in b"0123456789abcdefABCDEF" for c in seed):
        return PrivateKey(bytes.fromhex(seed.decode("ascii")))
    if b"-----" not in data:
        raise BadArtifact("stdin: neither PEM nor the 64 hexadecimal digits of a seed")
    label, _ = pem.decode(data, "stdin", pem.PRIVATE, pem.PUBLIC)
    return PrivateKey.from_pem(data, "stdin") if label == pem.PRIVATE else PublicKey.from_pem(data, "stdin")


def _vkey(key: PublicKey, name: str | None) -> str:
    """The C2SP vkey under a name; "" without one. UsageError: no such name is allowed."""
    from auditkit.formats.note import ED25519, NoteKey

    if name is None:
        return ""
    try:
        return NoteKey(name, ED25519, key.raw).text
    except BadArtifact as error:
        raise UsageError(f"--name: {error.message}", hint="for example --name example.org/run") from error


def _shown(key: PublicKey, vkey: str, json: bool, *, made: Path | None = None, private: bool = False) -> Outcome:
    public = key.pem().decode("ascii")
    if json:
        found: dict[str, object] = {"keyid": key.keyid, "public_key": public}
        if vkey:
            found["vkey"] = vkey
        if made is not None:
            found |= {"path": str(made), "private": private}
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, "format": FORMAT, **found}))
    lines = [f"keyid  {key.keyid}"]
    if vkey:
        lines.append(f"vkey   {printable(vkey)}")
    if made is not None:
        kind = "private key, for you alone" if private else "public key"
        lines.append(f"file   {printable(str(made))} ({kind})")
    return Outcome(Verdict.MATCH, "\n".join(lines) + "\n" + public)
