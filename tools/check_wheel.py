"""Build sdist and wheel, and check what they contain and what installing them brings.

The wheel holds `auditkit` alone (with SPEC.md and the sources of the kernels), under 3 MB; in a clean environment it
installs without torch and CUDA, its command answers, and it names its sources by the digest that they have here. Run by
`make wheel`; exit code 1 and a message otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
WHEEL_LIMIT = 3_000_000  # bytes
NEEDED = (
    "auditkit/__init__.py",
    "auditkit/py.typed",
    "auditkit/numerics/SPEC.md",
    "auditkit/numerics/known_answers.json",
    "auditkit/numerics/wide_answers.json",
    "auditkit/trust/page.css",
    "auditkit/trust/page.html",
    "auditkit/trust/page.js",
    "auditkit/kernels/cuda_source/common.cuh",
    "auditkit/native/source/common.h",
    "auditkit/native/source/dot.c",
)
SOURCE = "from auditkit.audit.source import source_digest; print(source_digest())"
NEVER = ("torch", "cupy", "nvidia", "cuda", "triton", "tokenizers", "matplotlib")


def build() -> tuple[Path, Path]:
    """Build into dist/ (the wheel from the sdist, so that the sdist is known to be whole)."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)], check=True, stdout=subprocess.DEVNULL
    )
    (sdist,) = DIST.glob("*.tar.gz")
    (wheel,) = DIST.glob("*.whl")
    return sdist, wheel


def check_names(sdist: Path, wheel: Path) -> list[str]:
    """Problems with the files in both archives."""
    names = zipfile.ZipFile(wheel).namelist()
    problems = [f"wheel: unexpected file {n}" for n in names if not n.startswith(("auditkit/", "auditkit_verifier-"))]
    problems += [f"wheel: {n} is missing" for n in NEEDED if n not in names]
    problems += [f"wheel: {n} must not be in it" for n in names if n.endswith((".pyc", ".so", ".npz"))]
    if not any(n.endswith("licenses/LICENSE") for n in names):
        problems.append("wheel: LICENSE is missing")
    if wheel.stat().st_size >= WHEEL_LIMIT:
        problems.append(f"wheel: {wheel.stat().st_size} bytes, the limit is {WHEEL_LIMIT}")
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    problems += [f"sdist: unexpected file {n}" for n in inside if n.startswith(("manifests", "tests", "trainer"))]
    return problems


def check_install(wheel: Path) -> list[str]:
    """Problems after installing the wheel into a clean environment, far from this folder."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "clean env"
        venv.create(home, with_pip=True)
        scripts = home / ("Scripts" if os.name == "nt" else "bin")
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        python = str(scripts / "python")
        subprocess.run([python, "-m", "pip", "install", "-qq", str(wheel)], check=True, cwd=folder, env=env)
        listed = subprocess.run(
            [python, "-m", "pip", "list", "--format=json"], check=True, cwd=folder, env=env, capture_output=True
        )
        names = sorted(str(p["name"]).lower() for p in json.loads(listed.stdout))
        problems = [f"install: brings {n}" for n in names if n.startswith(NEVER)]
        asked = subprocess.run(
            [str(scripts / "auditkit"), "--help"],
            cwd=folder,
            env=env,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if asked.returncode != 0 or "verify" not in asked.stdout:
            problems.append(f"auditkit --help: exit code {asked.returncode}\n{asked.stdout}{asked.stderr}")
        problems += check_source(python, folder, env)
        print(f"installs {len(names)} packages: {' '.join(names)}")
    return problems


def check_source(python: str, folder: str, env: dict[str, str]) -> list[str]:
    """A problem unless the installed program names its sources by the same digest as this checkout."""
    installed, here = (
        subprocess.run([command, "-c", SOURCE], cwd=place, env=env, check=True, capture_output=True, encoding="utf-8")
        for command, place in ((python, folder), (sys.executable, str(ROOT)))
    )
    if installed.stdout != here.stdout:
        return [f"source digest: {installed.stdout.strip()} installed, {here.stdout.strip()} in the checkout"]
    return []


def main() -> int:
    """Build, check, report; 0 when all is well."""
    sdist, wheel = build()
    problems = check_names(sdist, wheel) + check_install(wheel)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"{wheel.name}: {wheel.stat().st_size} bytes, {len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
