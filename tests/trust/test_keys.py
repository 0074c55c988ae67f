"""Keys: signatures have one form and one meaning, and no file or message gives a private key away."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Unsupported, Untrusted, UsageError
from auditkit.formats import pem
from auditkit.trust import keys
from auditkit.trust.keys import PrivateKey, PublicKey
from auditkit.trust.point import ORDER
from tests.formats.test_pem import PRIVATE, PUBLIC, RAW, SEED
from tests.trust.test_point import CASES

KEY = PrivateKey(SEED)
MESSAGE = b"step 5 matches"


@pytest.mark.parametrize("case", CASES["rfc8032"])
def test_signatures_are_those_of_the_standard(case: dict[str, str]) -> None:
    key, message = PrivateKey(bytes.fromhex(case["seed"])), bytes.fromhex(case["message"])
    assert key.public.raw.hex() == case["key"]
    assert key.sign(message).hex() == case["signature"]
    key.public.verify(bytes.fromhex(case["signature"]), message)


@pytest.mark.parametrize("case", CASES["signed"], ids=range(len(CASES["signed"])))
def test_signatures_about_which_verifiers_disagree_are_refused(case: dict[str, str]) -> None:
    with pytest.raises(Untrusted, match=case["error"]):
        PublicKey(bytes.fromhex(case["key"])).verify(bytes.fromhex(case["signature"]), bytes.fromhex(case["message"]))


@given(st.integers(0, 64 * 8 - 1), st.binary(max_size=40))
def test_no_signature_with_another_bit_is_accepted(bit: int, message: bytes) -> None:
    signature = bytearray(KEY.sign(message))
    KEY.public.verify(bytes(signature), message)
    signature[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Untrusted):
        KEY.public.verify(bytes(signature), message)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_a_signature_speaks_for_one_message_and_one_key(message: bytes, other: bytes) -> None:
    signature = KEY.sign(message)
    with pytest.raises(Untrusted, match="does not fit what it signs"):
        KEY.public.verify(signature, other + b"!" if other == message else other)
    with pytest.raises(Untrusted, match="does not fit what it signs"):
        PrivateKey(bytes(32)).public.verify(signature, message)


@pytest.mark.parametrize("size", [0, 32, 63, 65, 128])
def test_a_signature_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(Untrusted, match=f"signature of {size} bytes, an Ed25519 signature has 64"):
        KEY.public.verify((KEY.sign(MESSAGE) * 2)[:size], MESSAGE)


@pytest.mark.parametrize("times", range(1, 16))
def test_a_second_s_of_a_valid_signature_is_refused_here_and_by_the_library(times: int) -> None:
    signature = KEY.sign(MESSAGE)
    s = int.from_bytes(signature[32:], "little") + times * ORDER
    if s >> 256:
        return
    other = signature[:32] + s.to_bytes(32, "little")
    with pytest.raises(Untrusted, match="not in the one accepted form"):
        KEY.public.verify(other, MESSAGE)
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(KEY.public.raw).verify(other, MESSAGE)


def signed_with(r: bytes) -> bytes:
    """The signature that the owner of KEY can make for a nonce whose point is of small order: S = k a."""
    digest = bytearray(hashlib.sha512(SEED).digest()[:32])
    digest[0] &= 248
    digest[31] = digest[31] & 63 | 64
    k = int.from_bytes(hashlib.sha512(r + KEY.public.raw + MESSAGE).digest(), "little")
    return r + (k * int.from_bytes(digest, "little") % ORDER).to_bytes(32, "little")


@pytest.mark.parametrize("text", CASES["small_order"] + CASES["non_canonical"])
def test_an_r_of_small_order_is_refused(text: str) -> None:
    signature = signed_with(bytes.fromhex(text))
    with pytest.raises(Untrusted):
        KEY.public.verify(signature, MESSAGE)
    library = Ed25519PublicKey.from_public_bytes(KEY.public.raw)
    if text == CASES["small_order"][0]:
        library.verify(signature, MESSAGE)  # the neutral point: only our own check refuses it
    else:
        with pytest.raises(InvalidSignature):
            library.verify(signature, MESSAGE)


def test_the_keyid_is_the_digest_of_the_public_key() -> None:
    assert KEY.public.raw == RAW
    key = serialization.load_pem_public_key(PUBLIC)
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert KEY.public.keyid == hashlib.sha256(der).hexdigest()
    assert KEY.public.keyid8 == KEY.public.keyid[:8]


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=20)
def test_files_are_those_of_other_programs(seed: bytes) -> None:
    ours, theirs = PrivateKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    none, text = serialization.NoEncryption(), serialization.Encoding.PEM
    assert ours.pem() == theirs.private_bytes(text, serialization.PrivateFormat.PKCS8, none)
    public = theirs.public_key().public_bytes(text, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert ours.public.pem() == public
    assert PrivateKey.from_pem(ours.pem()).public == PublicKey.from_pem(public) == ours.public


def test_a_key_of_another_algorithm_is_refused() -> None:
    key = ec.derive_private_key(7, ec.SECP256R1())
    text, none = serialization.Encoding.PEM, serialization.NoEncryption()
    with pytest.raises(BadArtifact, match="private key: not an Ed25519 private key in PKCS #8"):
        PrivateKey.from_pem(key.private_bytes(text, serialization.PrivateFormat.PKCS8, none))
    public = key.public_key().public_bytes(text, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(BadArtifact, match="public key: not an Ed25519 public key"):
        PublicKey.from_pem(public)


def test_an_encrypted_or_openssh_key_is_refused_with_a_way_out() -> None:
    key, text = Ed25519PrivateKey.from_private_bytes(SEED), serialization.Encoding.PEM
    secret = serialization.BestAvailableEncryption(b"secret")
    with pytest.raises(Unsupported, match="the private key is encrypted, which is not supported") as caught:
        PrivateKey.from_pem(key.private_bytes(text, serialization.PrivateFormat.PKCS8, secret))
    assert "openssl pkey" in caught.value.hint
    openssh = key.private_bytes(text, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    with pytest.raises(Unsupported, match="a private key of OpenSSH, which is not supported") as caught:
        PrivateKey.from_pem(openssh)
    assert "auditkit key new" in caught.value.hint


@pytest.mark.parametrize("seed", [b"", SEED[:-1], SEED + b"\0"])
def test_a_seed_of_another_length_is_refused(seed: bytes) -> None:
    with pytest.raises(BadArtifact, match="an Ed25519 private key has 32"):
        PrivateKey(seed)


@given(st.integers(0, len(PRIVATE) - 1), st.integers(0, 255))
def test_a_changed_private_file_is_another_key_or_an_error(place: int, byte: int) -> None:
    data = PRIVATE[:place] + bytes([byte]) + PRIVATE[place + 1 :]
    try:
        assert PrivateKey.from_pem(data).pem() != PRIVATE or pem.decode(data, "", pem.PRIVATE)[1] == pem.pkcs8(SEED)
    except AuditkitError as error:
        assert error.message.isprintable()


def test_nothing_but_the_file_shows_a_private_key() -> None:
    for shown in (repr(KEY), str(KEY), f"{KEY}"):
        assert shown == f"PrivateKey({KEY.public.keyid8})"
    assert not hasattr(KEY, "__dict__")


def test_fresh_keys_differ() -> None:
    assert len({keys.new_key().public.keyid for _ in range(8)}) == 8


@pytest.mark.optional("a second witness of files that cryptography has read already")
def test_openssl_reads_our_files_and_we_read_its(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")
    theirs, ours, message, signature = (tmp_path / name for name in ("theirs.pem", "ours.pem", "message", "sig"))
    made = subprocess.run(
        [openssl, "genpkey", "-algorithm", "ed25519", "-out", theirs], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this openssl knows no Ed25519")
    theirs.chmod(0o600)
    keys.load_private(theirs)
    keys.save_private(ours, KEY)
    message.write_bytes(MESSAGE)
    command = [openssl, "pkeyutl", "-sign", "-rawin", "-inkey", ours, "-in", message, "-out", signature]
    subprocess.run(command, check=True, capture_output=True)
    assert signature.read_bytes() == KEY.sign(MESSAGE)


def test_a_saved_key_is_loaded_again(tmp_path: Path) -> None:
    keys.save_private(tmp_path / "a.pem", KEY)
    keys.save_public(tmp_path / "b.pem", KEY.public)
    assert keys.load_private(tmp_path / "a.pem").pem() == PRIVATE
    assert keys.load_public(tmp_path / "b.pem") == KEY.public
    with pytest.raises(UsageError, match=r"a\.pem: a private key, a public key is needed here"):
        keys.load_public(tmp_path / "a.pem")
    (tmp_path / "b.pem").chmod(0o600)
    with pytest.raises(UsageError, match=r"b\.pem: a public key, a private key is needed here"):
        keys.load_private(tmp_path / "b.pem")
    with pytest.raises(Unavailable, match=r"cannot read .*c\.pem"):
        keys.load_private(tmp_path / "c.pem")
