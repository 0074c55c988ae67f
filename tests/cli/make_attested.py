"""Makes the attestations of tests/cli/attested/: real audits of the bundled run sotu-tiny, by two auditors.

    python -m tests.cli.make_attested [FOLDER]

Steps 7 and 8 are replayed under each auditor's key, so digests and work are real; machine, program and times are fixed,
so that every machine makes the same bytes. Alice signed steps 7 and 8, Bob step 7. In mismatch/ both say of step 9 that
something else came out: that is made up, for nobody can find it in an honest run.
"""

from __future__ import annotations

import dataclasses
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import auditkit
from auditkit.audit.attest import Attester
from auditkit.formats.step_audit import Digests, StepAudit, sha256_of
from auditkit.replay.report import Report
from auditkit.replay.run import open_run
from auditkit.trust.envelope import sign
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict
from tests.formats import attestations, samples

RUN = "sotu-tiny"
FOLDER = Path(__file__).parent / "attested"
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SOURCE = samples.digest_of("source")
KEYS = {name: PrivateKey(bytes([number]) * 32) for number, name in enumerate(("alice", "bob"), start=1)}
MACHINES = {
    "alice": {"device": "cpu", "processor": "x86_64", "system": "Linux"},
    "bob": {"device": "cpu", "processor": "arm64", "system": "Darwin"},
}
VERSIONS = {"auditkit": "0.1.0", "numpy": "2.3.1", "python": "3.12.1"}

POLICY = """\
format = "auditkit/policy/v1"
threshold = 2
families = 2

"""


def fixed(report: Report, name: str) -> Report:
    """A report without what differs from machine to machine."""
    steps = tuple(
        dataclasses.replace(step, started=STARTED, finished=STARTED + timedelta(seconds=2), seconds=1.5)
        for step in report.steps
    )
    return dataclasses.replace(report, steps=steps, machine={**VERSIONS, **MACHINES[name]})


def audited(name: str, steps: str) -> dict[str, bytes]:
    """What an auditor signs after a replay."""
    attester = Attester(KEYS[name], source=SOURCE)
    report = auditkit.verify(RUN, steps=steps, device="cpu", work_key=attester.work_key)
    assert report.verdict is Verdict.MATCH
    return dict(file for signed in attester.attest(fixed(report, name)).signed for file in signed.files())


def mismatches() -> dict[str, bytes]:
    """What both would sign if step 9 of the run were not as published."""
    with open_run(RUN) as run:
        record = run.records[9]
        audit: StepAudit = dataclasses.replace(
            attestations.MISMATCH,
            run_id=run.run_id,
            run=run.name,
            step=9,
            manifest=run.manifest_digest,
            record=record.digest(),
            expected=Digests.of(record),
            automation="",
        )
    return {
        f"mismatch/step-9.{key.public.keyid8}.json": sign(audit.statement(sha256_of(record)), key).encode()
        for key in KEYS.values()
    }


def make() -> dict[str, bytes]:
    """All files by name."""
    public = {name: key.public.pem() for name, key in KEYS.items()}
    auditors = [f'[[auditor]]\nname = "{name}"\nkey = """\n{pem.decode()}"""\n' for name, pem in public.items()]
    return {
        **{f"{name}.pem": pem for name, pem in public.items()},
        "policy.toml": (POLICY + "\n".join(auditors)).encode("utf-8"),
        **{f"match/{name}": data for name, data in (audited("alice", "7:9") | audited("bob", "7:8")).items()},
        **mismatches(),
    }


def main() -> None:
    """Write the files into the folder given, or into tests/cli/attested."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name, data in make().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
