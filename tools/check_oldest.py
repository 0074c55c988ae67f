"""Make all vectors, train two tiny models and verify a step of the bundled run with the oldest versions that
pyproject.toml allows (numpy 2.0 among them).

The same bits must come out as with the newest ones, which .venv has. Run by `make oldest`; exit code of the verifier.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "oldest"
STEP = "500"
RUN = ROOT / "manifests" / "sotu-tiny"


def oldest() -> list[str]:
    """The verifier's dependencies, each pinned to its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [requirement.partition(",")[0].replace(">=", "==") for requirement in project["dependencies"]]


def same_bits(python: str) -> bool:
    """Whether the generators of vectors and golden trainings make the committed bytes."""
    made = HOME / "made"
    made.mkdir()
    generators = {"make_ops": "vectors", "make_elementary": "vectors", "make_training": "golden"}
    for name, area in generators.items():
        target = made / "training.json" if area == "golden" else made
        subprocess.run([python, "-m", f"tests.{area}.{name}", str(target)], check=True, cwd=ROOT)
    committed = {path.name: path for area in ("vectors", "golden") for path in (ROOT / "tests" / area).glob("*.json")}
    different = [path.name for path in sorted(made.iterdir()) if path.read_bytes() != committed[path.name].read_bytes()]
    print(f"{len(list(made.iterdir()))} files made again, different: {', '.join(different) or 'none'}", flush=True)
    return not different


def main() -> int:
    """Make the environment, install, make the vectors, verify one step."""
    venv.create(HOME, with_pip=True, clear=True)
    python = str(HOME / ("Scripts" if os.name == "nt" else "bin") / "python")
    pins = oldest()
    print("installs " + " ".join(pins), flush=True)
    subprocess.run([python, "-m", "pip", "install", "-qq", *pins, str(ROOT)], check=True)
    if not same_bits(python):
        return 1
    command = "from auditkit.cli.main import main; main()"
    for arguments in (["--help"], ["verify", "--help"]):
        subprocess.run([python, "-c", command, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=HOME)
    return subprocess.run(
        [python, "-c", command, "verify", "--run", str(RUN), "--step", STEP, "--offline"], check=False, cwd=HOME
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
