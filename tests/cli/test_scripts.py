"""Script-style tests of each command: every file in scripts/ is a story of commands and what they answer.

    # a comment
    > auditkit verify --run $RUN --step 0      the command; $RUN is an honest run, $WORK an empty folder,
                                               $KEY a private key, $ATTESTED files of make_attested.py,
                                               $SIGNED a signed run, $VKEY its key, $PROOF a proof of its step 5,
                                               $SEGMENTS a signed run of several segments, $SEGMENTS_VKEY its key
    ? 0                                        its exit code
    1 run        tiny                          a line of stdout; * stands for any text within the line
    1 ...                                      any number of lines, none included
    2 error: *                                 a line of stderr

A stream without lines must be empty, but for the lines of progress that a slow machine brings. Each command runs in a
process of its own that can reach no network, the first of a script in one that has imported nothing before; they run
side by side, so none may need another.
"""

from __future__ import annotations

import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from auditkit.trust.keys import PrivateKey, save_private
from tests.cli.conftest import Cli, Done, Signed

KEY = PrivateKey(bytes(range(32)))
ATTESTED = Path(__file__).parent / "attested"
PROGRESS = re.compile(r"^.+: .+, .+ left\n", re.MULTILINE)  # told of a task that takes ten seconds
SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@dataclass
class Command:
    """One command of a script and the answer that it must give."""

    line: str
    code: int = 0
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)


def parse(text: str) -> list[Command]:
    """The commands of a script."""
    commands: list[Command] = []
    for line in text.splitlines():
        mark, _, rest = line.partition(" ")
        if mark == ">":
            commands.append(Command(rest))
        elif mark == "?":
            commands[-1].code = int(rest)
        elif mark == "1":
            commands[-1].stdout.append(rest)
        elif mark == "2":
            commands[-1].stderr.append(rest)
        elif line and mark != "#":
            raise ValueError(f"not a line of a script: {line!r}")
    return commands


def pattern(lines: list[str]) -> re.Pattern[str]:
    """The expected lines as one regular expression over the whole stream."""
    parts = []
    for line in lines:
        if line == "...":
            parts.append("(?:.*\n)*?")
        else:
            parts.append(".*".join(map(re.escape, line.split("*"))) + "\n")
    return re.compile("".join(parts))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path, cli: Cli, honest: Path, signed: Signed, segments: Signed, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    save_private(key, KEY)
    names = {"$RUN": honest.as_posix(), "$WORK": (tmp_path / "work").as_posix(), "$KEY": key.as_posix()}
    names["$ATTESTED"] = ATTESTED.as_posix()
    names |= {"$SEGMENTS_VKEY": segments.vkey, "$SEGMENTS": segments.run.as_posix()}
    names |= {"$SIGNED": signed.run.as_posix(), "$PROOF": signed.proof.as_posix(), "$VKEY": signed.vkey}
    (tmp_path / "work").mkdir()

    def run(command: Command) -> Done:
        line = command.line
        for name, value in names.items():
            line = line.replace(name, value)
        words = shlex.split(line)
        assert words[0] == "auditkit"
        return cli(*words[1:], alone=command is commands[0])

    commands = parse(script.read_text(encoding="utf-8"))
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(run, commands))
    for command, done in zip(commands, answers, strict=True):
        assert done.code == command.code, f"{command.line}\n{done.stdout}\n{done.stderr}"
        told = PROGRESS.sub("", done.stderr)
        for name, said, lines in (("stdout", done.stdout, command.stdout), ("stderr", told, command.stderr)):
            assert pattern(lines).fullmatch(said), f"{command.line}: {name} is\n{said}\nexpected\n" + "\n".join(lines)


def test_every_command_has_a_script() -> None:
    from auditkit.cli.main import app

    commands = {info.name for info in (*app.registered_commands, *app.registered_groups)}
    first = {parse(path.read_text(encoding="utf-8"))[0].line.split()[1] for path in SCRIPTS}
    assert first - {"--help"} == commands, "each begins a script, so that it runs where nothing was imported before"


def test_a_script_that_expects_too_little_fails() -> None:
    assert pattern(["a", "b*"]).fullmatch("a\nbc\n")
    assert not pattern(["a"]).fullmatch("a\nb\n")
    assert pattern(["a", "..."]).fullmatch("a\nb\nc\n")
    assert not pattern([]).fullmatch("a\n")
