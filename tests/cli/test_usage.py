"""Wrong usage: exit code 2, one line of error and one of hint, on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

CASES = [
    ("verify --run $RUN --step 1 --random 2", "choose exactly one of", "for example: --step 0"),
    ("verify --run $RUN --steps 5:5", "--steps 5:5 is empty", "the end is not included: 5:6 is step 5 alone"),
    ("verify --run $RUN --steps five", "--steps 'five' is not A:B", "A:B means A, A+1, ... B-1; for example 10:13"),
    ("verify --run $RUN --random 9", "9 random steps asked for, but the run has 8", "--random 8 takes all"),
    ("verify --run $RUN --step 1 --seed 3", "--seed belongs to --random", "for example"),
    ("verify --run $RUN/nowhere --step 1", "is not the name of a bundled run, and there is no such path", ""),
    ("verify --run $RUN --step 1 --threads 0", "threads 0 is outside 1..1024", None),
    ("verify --run $RUN --step one", "invalid value for '--step'", "auditkit verify --help"),
    ("verify --run $RUN --step 1_0", "invalid value for '--step': '1_0' is not a number", "auditkit verify --help"),
    ("verify --run $RUN --step \u0661", "is not a number of at most 20 digits", "auditkit verify --help"),
    ("verify --run $RUN --step 123456789012345678901", "is not a number of", "auditkit verify --help"),
    ("verify --run $RUN --step -1", "step -1 is outside 0..9007199254740991", None),
    ("verify --run $RUN --random +1", "invalid value for '--random'", "auditkit verify --help"),
    ("verify --run $RUN --random 1 --seed 1_0", "invalid value for '--seed'", "auditkit verify --help"),
    ("plan --run $RUN --step 1 --threads 1_0", "invalid value for '--threads'", "auditkit plan --help"),
    ("data --run $RUN --step 1_0", "invalid value for '--step'", "auditkit data --help"),
    ("show step 1_0 --run $RUN", "invalid value for '[N]'", "auditkit show --help"),
    ("verify --run $RUN --step 1 --step 2", "option '--step' is given twice", "auditkit verify --help"),
    ("verify --run $RUN --run $RUN --step 1", "option '--run' is given twice", "auditkit verify --help"),
    ("show run --run $RUN --offline --offline", "option '--offline' is given twice", "auditkit show --help"),
    ("cache path --cache-dir a --cache-dir b", "option '--cache-dir' is given twice", "auditkit cache path --help"),
    ("verify --run", "option '--run' requires an argument", "auditkit --help"),
    ("verify extra --step 1", "extra", "auditkit verify --help"),
    ("verfy", "no such command 'verfy'", "auditkit --help"),
    ("", "missing command", "auditkit --help"),
    ("show step --run $RUN", "a step number belongs to `show step`", "auditkit show step 500"),
    ("data --run $RUN", "missing option '--step'", "auditkit data --help"),
    ("diff $RUN:4", "missing argument", "auditkit diff --help"),
    ("explain --run $RUN", "missing option '--step'", "auditkit explain --help"),
    ("explain --run $RUN --step 1_0", "invalid value for '--step'", "auditkit explain --help"),
    ("explain --run $RUN --step 9", "step 9 not in this run: it has 8 steps", ""),
    ("explain --run $RUN --step 1 --html $RUN", "is a folder", "name a file"),
    ("explain --run $RUN --step 1 --html $RUN/run.json", "is no page of an explanation", "choose a new name"),
    ("trace --run $RUN --step 1", "choose exactly one of -o, --compare and --compare-backends", "auditkit trace"),
    ("trace --run $RUN -o t.json", "--step belongs to -o and --compare-backends", "auditkit trace --step 0"),
    ("trace --step 1 --compare a b", "--step belongs to -o and --compare-backends", "auditkit trace --step 0"),
    ("trace --run $RUN --step 9 -o t.json", "step 9 not in this run: it has 8 steps", ""),
    ("trace --run $RUN --step 1 -o $RUN/run.json", "run.json", ""),
    ("trace --run $RUN --step 1 --micro-batch 2 -o t.json", "micro-batch 2 is outside 0..1", None),
    ("trace --compare a", "option '--compare' requires 2 arguments", "auditkit"),
    ("cache", "missing command", "auditkit cache --help"),
]


@pytest.mark.parametrize(("line", "message", "hint"), CASES, ids=[line for line, _, _ in CASES])
def test_usage(main: Cli, honest: Path, line: str, message: str, hint: str | None) -> None:
    done = main(*(word.replace("$RUN", str(honest)) for word in line.split()))
    assert (done.code, done.stdout) == (2, "")
    error, *rest = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert not error.endswith(".")
    assert [word.startswith("hint: ") for word in rest] == ([] if hint is None else [True])
    assert (hint or "") in "".join(rest)
