"""The whole story, with the real programs: a run with one false step, five auditors, four of whose claims are lies,
and a publisher who wants to take it all back. Who did what shows in coverage, policy and exit codes.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from auditkit.formats.note import COSIGNATURE, SignedNote
from auditkit.formats.run import RunManifest
from auditkit.trust import notes
from auditkit.trust.keys import load_private
from tests.story import forger
from tests.story.stage import NAME, STEPS, Done, Person, people, publish

TAMPERED = 13
EACH = 8  # steps that an auditor verifies: 40 in all, of 24
BEACON = "7d" * 32
WITNESS = "witness.example"


@dataclass
class Story:
    """Where everything lies."""

    folder: Path
    publisher: Person
    witness: Person
    auditors: list[Person]
    attested: Path = field(init=False)
    run: Path = field(init=False)

    def __post_init__(self) -> None:
        self.run, self.attested = self.folder / NAME, self.folder / "attested"

    def policy(self, name: str, *excluded: str, log: bool = True) -> Path:
        """A policy that asks for two of the five auditors, and for a log that the witness has seen."""
        lines = ['format = "auditkit/policy/v1"', "threshold = 2"]
        if log:
            lines += ["[log]", f'publisher = "{self.publisher_vkey}"', f'witnesses = ["{self.witness_vkey}"]']
            lines += ["witness_threshold = 1"]
        for auditor in self.auditors:
            lines += ["[[auditor]]", f'name = "{auditor.name}"', f'key = """{auditor.public_pem}"""']
        for keyid in excluded:
            lines += ["[[excluded]]", f'keyid = "{keyid}"', 'reason = "caught lying"']
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    @property
    def publisher_vkey(self) -> str:
        """The publisher's key as the manifest names it."""
        found = RunManifest.parse((self.run / "run.json").read_bytes()).publisher
        assert found is not None
        return found.text

    @property
    def witness_vkey(self) -> str:
        """The witness's key."""
        return notes.note_key(WITNESS, load_private(self.witness.key).public, COSIGNATURE).text

    def cosign(self) -> None:
        """The witness sees the log as it is now."""
        place = self.run / "log" / "checkpoint"
        note = SignedNote.parse(place.read_bytes())
        key = load_private(self.witness.key)
        place.write_bytes(notes.cosign(note, WITNESS, key, int(time.time())).encode())

    def coverage(self, policy: Path, who: int = 0) -> dict[str, Any]:
        """The coverage of all that is in the folder."""
        return (
            self.auditors[who]
            .auditkit("coverage", "--run", self.run, "--policy", policy, "--json", self.attested)
            .value
        )

    def step_of(self, path: Path) -> int:
        """The step that an attestation's file is called after."""
        return int(path.name.split(".")[0].removeprefix("step-"))

    def by(self, auditor: Person) -> dict[int, Path]:
        """The attestations of an auditor by step."""
        return {self.step_of(path): path for path in self.attested.glob(f"step-*.{auditor.keyid[:8]}.json")}


def test_the_whole_story(tmp_path: Path) -> None:
    names = ("publisher", "witness", "ann", "ben", "cleo", "dora", "emil")
    publisher, witness, *auditors = people(tmp_path, *names)
    story = Story(tmp_path, publisher, witness, auditors)
    publish(publisher, story.run, tampered=TAMPERED)
    story.cosign()
    policy = story.policy("policy")

    said = five_auditors_verify_forty_steps(story, policy)
    a_copied_digest_counts_until_somebody_replays(story, policy, said)
    a_false_accusation_is_disputed_until_somebody_replays(story, policy, said)
    an_attestation_cannot_be_shown_for_another_step(story, policy, said)
    the_publisher_cannot_rewrite_the_log(story, policy)


def five_auditors_verify_forty_steps(story: Story, policy: Path) -> dict[str, Any]:
    """Each asks which steps need it, and verifies those; the false step is found and found again."""
    story.attested.mkdir()
    for auditor in story.auditors:
        words = ("--run", story.run, "--policy", policy)
        chosen = auditor.auditkit(
            "next", *words, "--key", auditor.public, "--count", EACH, "--beacon", BEACON, story.attested
        )
        steps = sorted(map(int, chosen.stdout.split()))
        assert (chosen.code, len(steps)) == (0, EACH)
        done = auditor.auditkit(
            *("verify", *words, "--steps", ",".join(map(str, steps)), "--device", "cpu"),
            *("--attest", auditor.key, "--attest-dir", story.attested),
        )
        assert done.code == (3 if TAMPERED in steps else 0), done.stdout + done.stderr
        assert f"cosigned by {WITNESS}" in done.stdout
    found = story.coverage(policy)
    assert (found["code"], found["verdict"]) == (3, "MISMATCH")
    assert found["attestations"]["counted_in"] == 5 * EACH
    # 24 steps once each, then the false one again, to somebody else, and others a second time: 38 matches of 23 steps
    assert found["totals"] == {"mismatch": 1, "disputed": 0, "open": 0, "partial": 8, "covered": 15}
    (mismatch,) = found["mismatches"]
    assert (mismatch["step"], mismatch["match"]) == (TAMPERED, [])
    ((result,),) = [mismatch["computed"]]
    assert len(result["keyids"]) == 2
    return found


def one_word_steps(story: Story, found: dict[str, Any], silent: Person) -> list[int]:
    """Steps with one MATCH, not by `silent`."""
    own = story.by(silent)
    return [step for first, stop in found["partial"] for step in range(first, stop) if step not in own]


def recheck(story: Story, who: Person, path: Path, *, run: Path | None = None) -> Done:
    """Replay what an attestation claims, on the machine of `who`; any of the five keys is known."""
    keys = [word for auditor in story.auditors for word in ("--key", auditor.public)]
    return who.auditkit("attest", "check", path, *keys, "--run", run or story.run, "--recheck", "--device", "cpu")


def a_copied_digest_counts_until_somebody_replays(story: Story, policy: Path, said: dict[str, Any]) -> None:
    """Cleo signs a MATCH without replaying: all digests are public, only the work is invented."""
    cleo, ben = story.auditors[2], story.auditors[1]
    step = one_word_steps(story, said, cleo)[0]
    (honest,) = [path for auditor in story.auditors for s, path in story.by(auditor).items() if s == step]
    lie = story.attested / f"step-{step}.lie-of-cleo.json"
    lie.write_bytes(forger.copied(honest, cleo))

    # nobody has replayed it, and the policy is content: coverage believes what is signed
    assert story.coverage(policy)["totals"]["covered"] == said["totals"]["covered"] + 1
    refuted, confirmed = recheck(story, ben, lie), recheck(story, ben, honest)
    assert (refuted.code, confirmed.code) == (8, 0), refuted.stdout + confirmed.stdout
    assert "work" in refuted.stdout
    # somebody else's work is of no use either
    lie.write_bytes(forger.with_borrowed_work(honest, cleo))
    assert recheck(story, ben, lie).code == 8

    without = story.policy("without-cleo", cleo.keyid)
    totals = story.coverage(without)["totals"]
    assert totals["covered"] < said["totals"]["covered"]
    assert sum(totals.values()) == STEPS
    lie.unlink()


def a_false_accusation_is_disputed_until_somebody_replays(story: Story, policy: Path, said: dict[str, Any]) -> None:
    """Dora claims that an honest step came out differently."""
    dora, ann = story.auditors[3], story.auditors[0]
    step, honest = next((s, path) for s, path in story.by(ann).items() if s not in story.by(dora) and s != TAMPERED)
    lie = story.attested / f"step-{step}.lie-of-dora.json"
    lie.write_bytes(forger.false_accusation(honest, dora))

    found = story.coverage(policy)
    assert [dispute["step"] for dispute in found["disputes"]] == [step]
    assert [mismatch["step"] for mismatch in found["mismatches"]] == [TAMPERED]  # one word does not make a mismatch
    silent = next(auditor for auditor in story.auditors if auditor is not dora and step not in story.by(auditor))
    words = ("--run", story.run, "--policy", policy, "--beacon", BEACON, "--key", silent.public, story.attested)
    assert silent.auditkit("next", *words).stdout.split() == [str(step)]
    assert recheck(story, silent, lie).code == 8
    # the accusation that is true is confirmed by a replay elsewhere
    true = next(path for auditor in story.auditors for s, path in story.by(auditor).items() if s == TAMPERED)
    assert recheck(story, silent, true).code == 3

    without = story.policy("without-dora", dora.keyid)
    assert step not in [dispute["step"] for dispute in story.coverage(without)["disputes"]]
    lie.unlink()


def an_attestation_cannot_be_shown_for_another_step(story: Story, policy: Path, said: dict[str, Any]) -> None:
    """Emil shows an attestation of one step for another: re-signed, edited under Ann's signature, or renamed."""
    emil, ann = story.auditors[4], story.auditors[0]
    other = one_word_steps(story, said, emil)[0]
    path = next(path for step, path in story.by(ann).items() if step != other)
    lie = story.attested / f"step-{other}.lie-of-emil.json"
    for data, reason in (
        (forger.signed(forger.moved(path, other), emil), "SHA-256"),
        (forger.edited_under_its_signature(path, other), "does not fit"),
    ):
        lie.write_bytes(data)
        found = story.coverage(policy)
        assert found["totals"] == said["totals"]
        (refused,) = found["refused"]["all"]
        assert refused["where"].endswith(lie.name) and reason in refused["reason"]
        checked = ann.auditkit("attest", "check", lie, "--policy", policy, "--run", story.run)
        assert checked.code == 8, checked.stdout
    shutil.copy(path, lie)  # a name is nothing: it still speaks of its own step, once
    found = story.coverage(policy)
    assert (found["totals"], found["refused"]["count"]) == (said["totals"], 0)
    assert found["attestations"]["repeats"] == 1
    lie.unlink()


def the_publisher_cannot_rewrite_the_log(story: Story, policy: Path) -> None:
    """The run is published again, honestly trained, in the same place and under the same name and key."""
    shutil.move(story.run, story.folder / "kept-copy")
    publish(story.publisher, story.run)
    ann, newcomer = story.auditors[0], Person("newcomer", story.folder / "newcomer")
    words = ("verify", "--run", story.run, "--step", TAMPERED, "--device", "cpu")

    seen = ann.auditkit(*words)  # she remembers the checkpoint that she saw
    assert seen.code == 8
    assert "two histories" in seen.stdout
    kept = sorted((ann.home / "data" / "evidence").rglob("*.txt"))
    assert {"smaller.txt", "larger.txt"} <= {path.name for path in kept}
    asked = newcomer.auditkit(*words, "--policy", policy)  # no witness has seen this log
    assert asked.code == 8
    assert "witness" in asked.stdout
    # who remembers nothing and asks no witness cannot know; the result says so
    fooled = newcomer.auditkit(*words)
    assert fooled.code == 0
    assert "no witness was asked" in fooled.stdout
    # attestations of records that are no longer there are refused, the others stand; nobody who knows of the two
    # histories is told a coverage at all
    without = story.policy("no-log", log=False)
    coverage = ("coverage", "--run", story.run, "--policy", without, "--json", story.attested)
    assert ann.auditkit(*coverage).code == 8
    found = newcomer.auditkit(*coverage).value
    assert found["totals"]["mismatch"] == 0
    assert found["refused"]["count"] == sum(story.step_of(p) >= TAMPERED for p in attestations(story))


def attestations(story: Story) -> list[Path]:
    """All of them, without the summaries."""
    return [path for path in story.attested.glob("step-*.json") if not path.name.endswith(".svr.json")]
