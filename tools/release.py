"""Lock the dependencies, build a release twice and compare, describe what it brings, and look for known weaknesses.

    python tools/release.py lock             write requirements/*.txt anew, with the digest of every file
    python tools/release.py check [FOLDER]   build twice under different circumstances: the same bytes, and those of
                                             the files in FOLDER, if one is given; install by the lock; write the SBOM
    python tools/release.py audit            ask the advisory database about every locked version

`make release-check` and .github/workflows/release.yml run these. Exit code 1 and a message when anything is wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
WORK = ROOT / "build" / "release"
DIST = ROOT / "dist"
PARTS = ("auditkit", "cuda", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", ".gitignore")
# What may differ from machine to machine, and may not change a byte.
CIRCUMSTANCES = (
    {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1", "umask": "022", "folder": "first"},
    {"TZ": "Pacific/Kiritimati", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2", "umask": "077", "folder": "a second one"},
)
OLD = 1_000_000_000  # Unix time: files that were last changed in 2001
EXTRAS = {"verifier": (), "dev": ("dev",)}


class Wrong(Exception):
    """Something about the release is not as it must be"""


def run(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """What a command says; `Wrong` with its words when it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def scripts(home: Path) -> Path:
    """Where an environment has its programs."""
    return home / ("Scripts" if os.name == "nt" else "bin")


def environment(home: Path, lock: str) -> Path:
    """The programs of a fresh environment with exactly what a lock file lists."""
    venv.create(home, with_pip=True, clear=True)
    pip = [scripts(home) / "python", "-m", "pip", "install", "-qq", "--require-hashes"]
    run(*pip, "-r", LOCKS / f"{lock}.txt")
    return scripts(home)


def epoch() -> str:
    """The time that all files in the archives bear: that of the commit."""
    return os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()


def copy(target: Path, *, strict: bool) -> None:
    """The files of the release that git knows; `strict`: for their owner only, and old."""
    for name in run("git", "ls-files", "-z", "--", *PARTS).split("\0"):
        if name:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, path)
            if strict:
                path.chmod(0o600)
                os.utime(path, (OLD, OLD))


def build(tools: Path, circumstances: dict[str, str], time: str) -> dict[str, bytes]:
    """Sdist, and the wheel from it, by name."""
    chosen = dict(circumstances)
    umask, folder = int(chosen.pop("umask"), 8), chosen.pop("folder")
    with tempfile.TemporaryDirectory() as home:
        source, out = Path(home) / folder, Path(home) / "out"
        copy(source, strict=umask == 0o077)
        before = os.umask(umask)
        try:
            env = {**os.environ, **chosen, "SOURCE_DATE_EPOCH": time}
            run(tools / "python", "-m", "build", "--no-isolation", "--outdir", out, source, env=env)
        finally:
            os.umask(before)
        return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def require_same(one: dict[str, bytes], other: dict[str, bytes], what: str) -> None:
    """`Wrong` unless both have the same files with the same bytes."""
    if one.keys() != other.keys():
        raise Wrong(f"{what}: {sorted(one)} and {sorted(other)}")
    different = [name for name in one if one[name] != other[name]]
    if different:
        raise Wrong(f"{what}: {', '.join(different)} differ")


def archives(folder: Path) -> dict[str, bytes]:
    """The sdist and the wheel that lie in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".gz", ".whl")}


def describe(tools: Path, installed: Path) -> bytes:
    """The bill of materials (CycloneDX) of what an auditor installs, the same bytes at every call."""
    command = [tools / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON", "--pyproject"]
    return run(*command, ROOT / "pyproject.toml", installed / "python").encode("utf-8")


def check_described(bill: bytes) -> int:
    """The number of components; `Wrong` where one of the verifier's own dependencies is missing."""
    found = {part["name"].lower() for part in json.loads(bill)["components"]}
    missing = [name for name in direct() if name not in found]
    if missing:
        raise Wrong(f"the bill of materials lacks {', '.join(missing)}")
    return len(found)


def direct() -> list[str]:
    """The names of the verifier's own dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [requirement.partition(">=")[0] for requirement in project["dependencies"]]


def check(against: Path | None) -> None:
    """Build twice, compare, install by the lock, describe."""
    tools = environment(WORK / "tools", "release")
    time = epoch()
    first, second = (build(tools, circumstances, time) for circumstances in CIRCUMSTANCES)
    require_same(first, second, "built twice")
    if against is not None:
        require_same(first, archives(against), f"built here and in {against}")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, data in first.items():
        (DIST / name).write_bytes(data)
    (wheel,) = DIST.glob("*.whl")
    installed = environment(WORK / "installed", "verifier")
    run(installed / "python", "-m", "pip", "install", "-qq", "--no-deps", wheel)
    run(installed / "python", "-m", "pip", "check")
    said = run(installed / "auditkit", "--version", cwd=WORK)
    run(installed / "python", "-m", "pip", "uninstall", "-qq", "-y", "setuptools", "pip")  # not what an auditor runs
    bill = describe(tools, installed)
    if bill != describe(tools, installed):
        raise Wrong("the bill of materials differs from call to call")
    count = check_described(bill)
    (DIST / f"{wheel.name.rpartition('-py3')[0]}.cdx.json").write_bytes(bill)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="ascii", newline="\n")
    print(f"{said.strip()}: built twice, the same bytes; {count} components by the lock\n{''.join(sums)}", end="")


def lock() -> None:
    """Resolve for every platform and every Python from 3.11 on, newest versions within the declared ranges."""
    uv = shutil.which("uv") or environment(WORK / "tools", "release") / "uv"
    common = [uv, "pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-header"]
    for name, extras in EXTRAS.items():
        chosen = [argument for extra in extras for argument in ("--extra", extra)]
        run(*common, "--upgrade", "-q", *chosen, "pyproject.toml", "-o", LOCKS / f"{name}.txt")
    run(*common, "--upgrade", "-q", LOCKS / "release.in", "-o", LOCKS / "release.txt")


def audit() -> None:
    """`Wrong` when a locked version has a known weakness, or could not be asked about."""
    tools = environment(WORK / "tools", "release")
    for name in (*EXTRAS, "release"):
        run(tools / "pip-audit", "--strict", "--require-hashes", "--disable-pip", "-r", LOCKS / f"{name}.txt")
        print(f"{name}: no known weakness")


def main() -> int:
    """Run one of the parts."""
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["check"] and len(arguments) < 3:
            check(Path(arguments[1]) if len(arguments) == 2 else None)
        elif arguments == ["lock"]:
            lock()
        elif arguments == ["audit"]:
            audit()
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except Wrong as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
