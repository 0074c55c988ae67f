"""The cache of compiled kernels, the one list of options, and what a user reads when compiling is impossible."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import Unsupported
from auditkit.kernels import compile as compile_module
from auditkit.kernels.compile import ARCHITECTURES, OLDEST, OPTIONS, Nvrtc, afresh, cubin
from auditkit.verdict import Verdict
from tests.kernels.compiled import NVRTC_MARKS

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class Counting:
    """Stands in for NVRTC in tests of the cache: the bytes say what was asked for, and calls are counted."""

    version: str = "13.0"
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def __call__(self, text: bytes, name: str, options: tuple[str, ...]) -> bytes:
        self.calls.append((name, options))
        return b"cubin of " + name.encode() + text[:50] + " ".join(options).encode() + self.version.encode()


def entry(cache: Path) -> Path:
    """The only file in the cache."""
    (path,) = cache.iterdir()
    return path


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    compiler, cache = Counting(), tmp_path / "not" / "there" / "yet"
    first = cubin("blake3", "90", compiler, cache)
    assert cubin("blake3", "90", compiler, cache) == first == Counting()(*arguments("blake3", "90"))
    assert len(compiler.calls) == 1
    assert compiler.calls[0] == ("blake3.cu", ("--gpu-architecture=sm_90", *OPTIONS, "--no-cache"))
    assert entry(cache).suffix == ".cubin"


def test_what_only_sm_90a_can_run_is_compiled_for_it(tmp_path: Path) -> None:
    compiler = Counting()
    cubin("exact_dot_sm90", "90", compiler, tmp_path)
    assert compiler.calls == [("exact_dot_sm90.cu", ("--gpu-architecture=sm_90a", *OPTIONS, "--no-cache"))]
    assert cubin("exact_dot_sm90", "90", compiler, tmp_path) and len(compiler.calls) == 1


def arguments(op: str, architecture: str) -> tuple[bytes, str, tuple[str, ...]]:
    return compile_module.source(op), f"{op}.cu", (f"--gpu-architecture=sm_{architecture}", *OPTIONS, "--no-cache")


def test_without_a_cache_each_call_compiles() -> None:
    compiler = Counting()
    assert cubin("blake3", "90", compiler, None) == cubin("blake3", "90", compiler, None)
    assert len(compiler.calls) == 2


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "only the magic": lambda data: data[:16],
    "no cubin": lambda data: data[:80],
    "half": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "a flipped bit": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "a flipped bit in the digest": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "another magic": lambda data: b"AUDITKIT-CUBIN0\n" + data[16:],
    "a bare cubin": lambda data: data[80:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_compiled_again_and_repaired(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    compiler = Counting()
    good = cubin("blake3", "90", compiler, tmp_path)
    whole = entry(tmp_path).read_bytes()
    entry(tmp_path).write_bytes(damage(whole))
    assert cubin("blake3", "90", compiler, tmp_path) == good and len(compiler.calls) == 2
    assert entry(tmp_path).read_bytes() == whole
    assert cubin("blake3", "90", compiler, tmp_path) == good and len(compiler.calls) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are another matter there")
@pytest.mark.optional("Windows has no modes of files")
def test_an_entry_that_others_can_write_is_not_run(tmp_path: Path) -> None:
    """Its own digest is right: whoever can write an entry can write that too."""
    compiler = Counting()
    good = cubin("blake3", "90", compiler, tmp_path)
    entry(tmp_path).chmod(0o622)
    assert cubin("blake3", "90", compiler, tmp_path) == good and len(compiler.calls) == 2
    assert cubin("blake3", "90", compiler, tmp_path) == good and len(compiler.calls) == 2


def test_an_entry_under_anothers_name_is_refused(tmp_path: Path) -> None:
    compiler = Counting()
    right = cubin("blake3", "90", compiler, tmp_path)
    path = entry(tmp_path)
    cubin("blake3", "80", compiler, tmp_path)
    (other,) = set(tmp_path.iterdir()) - {path}
    path.write_bytes(other.read_bytes())
    assert cubin("blake3", "90", compiler, tmp_path) == right and len(compiler.calls) == 3


def test_a_cache_that_cannot_be_used_is_done_without(tmp_path: Path) -> None:
    a_file = tmp_path / "file"
    a_file.write_bytes(b"")
    a_folder = tmp_path / "folder"
    compiler = Counting()
    cubin("blake3", "90", compiler, a_folder)
    path = entry(a_folder)
    path.unlink()
    path.mkdir()  # neither readable nor replaceable
    for cache in (a_file, a_file / "below", a_folder):
        assert cubin("blake3", "90", compiler, cache) == Counting()(*arguments("blake3", "90"))
    assert [p.name for p in a_folder.iterdir()] == [path.name], "a part was left behind"


def test_a_read_only_cache_is_read_and_not_written(tmp_path: Path) -> None:
    compiler = Counting()
    kept = cubin("blake3", "90", compiler, tmp_path)
    tmp_path.chmod(0o555)
    try:
        assert cubin("blake3", "90", compiler, tmp_path) == kept and len(compiler.calls) == 1
        assert cubin("blake3", "80", compiler, tmp_path) == Counting()(*arguments("blake3", "80"))
    finally:
        tmp_path.chmod(0o755)


def test_a_full_disk_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compile_module.os, "replace", full)
    compiler = Counting()
    for _ in range(2):
        assert cubin("blake3", "90", compiler, tmp_path) == Counting()(*arguments("blake3", "90"))
    assert not list(tmp_path.iterdir()) and len(compiler.calls) == 2


def test_the_key_changes_with_everything_that_decides_the_cubin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count() -> int:
        return len(list(tmp_path.iterdir()))

    cubin("blake3", "90", Counting(), tmp_path)
    cubin("blake3", "80", Counting(), tmp_path)
    assert count() == 2
    cubin("blake3", "90", Counting(version="13.1"), tmp_path)
    assert count() == 3
    cubin("exact_sum", "90", Counting(), tmp_path)
    assert count() == 4
    with monkeypatch.context() as patch:
        patch.setattr(compile_module, "OPTIONS", (*OPTIONS, "--extra"))
        cubin("blake3", "90", Counting(), tmp_path)
    assert count() == 5
    known = compile_module.headers()
    with monkeypatch.context() as patch:
        patch.setattr(compile_module, "headers", lambda: ((known[0][0], known[0][1] + b"\n"), *known[1:]))
        cubin("blake3", "90", Counting(), tmp_path)
    assert count() == 6
    with monkeypatch.context() as patch:
        patch.setattr(compile_module, "source", lambda op: b"// changed\n")
        cubin("blake3", "90", Counting(), tmp_path)
    assert count() == 7
    cubin("blake3", "90", Counting(), tmp_path)
    assert count() == 7


RACER = """
import sys, time
from pathlib import Path
from auditkit.kernels.compile import cubin
class Slow:
    version = "13.0"
    def __call__(self, text, name, options):
        time.sleep(0.05)
        return b"the same cubin" * 100000
for _ in range(3):
    for architecture in ("75", "80", "90"):
        assert cubin("blake3", architecture, Slow(), Path(sys.argv[1])) == b"the same cubin" * 100000
"""


def test_processes_share_a_cold_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(4)]
    errors = [racer.communicate(timeout=60)[1] for racer in racers]
    assert not [error for error in errors if error]
    assert [path.suffix for path in tmp_path.iterdir()] == [".cubin"] * 3


def test_the_options_leave_arithmetic_alone() -> None:
    assert {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"} <= set(OPTIONS)
    for option in OPTIONS:
        assert not any(word in option for word in ("fast", "ftz=true", "fmad=true", "prec-div=false", "Ofast", "-O"))


@pytest.mark.parametrize(
    ("version", "options"),
    [("12.4", ()), ("12.8", ()), ("12.9", ("--no-cache",)), ("13.0", ("--no-cache",)), ("13.10", ("--no-cache",))],
)
def test_a_compiler_with_a_cache_of_its_own_does_without(version: str, options: tuple[str, ...]) -> None:
    """12.8 refuses the option that 12.9 takes."""
    assert afresh(version) == options
    compiler = Counting(version=version)
    cubin("blake3", "90", compiler, None)
    assert compiler.calls == [("blake3.cu", ("--gpu-architecture=sm_90", *OPTIONS, *options))]


def test_architectures_are_named_once() -> None:
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES)
    assert {"75", "80", "86", "89", "90", "100", "120"} <= set(ARCHITECTURES)
    assert min(int(name.rstrip("a")) for name in ARCHITECTURES) == OLDEST


class TestNvrtc:
    pytestmark = NVRTC_MARKS

    def test_it_makes_a_cubin(self, tmp_path: Path) -> None:
        made = cubin("exp", "90", Nvrtc.load(), tmp_path)
        assert made.startswith(b"\x7fELF")
        assert cubin("exp", "90", Counting(version=Nvrtc.load().version), tmp_path) == made, "not kept"

    @pytest.mark.parametrize("architecture", ["35", "999", "nonsense"])
    def test_an_unknown_architecture_is_unsupported(self, architecture: str, tmp_path: Path) -> None:
        with pytest.raises(
            Unsupported, match=rf"NVRTC .* cannot compile exp\.cu .*sm_{architecture}: .*error"
        ) as caught:
            cubin("exp", architecture, Nvrtc.load(), tmp_path)
        assert caught.value.verdict is Verdict.UNSUPPORTED and "newer" in caught.value.hint
        assert not list(tmp_path.iterdir())

    def test_a_source_that_is_no_cuda_names_the_line(self) -> None:
        with pytest.raises(Unsupported, match=r"broken\.cu.*broken\.cu\(2\): error"):
            Nvrtc.load()(b"// fine\nthis is not CUDA\n", "broken.cu", ("--gpu-architecture=sm_90", *OPTIONS))


def test_a_compiler_that_does_not_load_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def getVersion(self) -> Any:
            raise RuntimeError("libnvrtc.so.13: cannot open shared object file\nmore")

    monkeypatch.setattr(compile_module, "_binding", Broken)
    with pytest.raises(Unsupported, match=r"could not be loaded \(libnvrtc\.so\.13: cannot open") as caught:
        Nvrtc.load()
    assert "cuda13" in caught.value.hint


def test_without_cupy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(Unsupported, match="CuPy is not installed") as caught:
        Nvrtc.load()
    assert "auditkit-verifier[cuda13]" in caught.value.hint
