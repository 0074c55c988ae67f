"""Simulate a run and what many auditors signed about it: real records, keys, envelopes and signatures, no replays."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from auditkit.audit.record_table import RecordTable
from auditkit.formats import leaves, record
from auditkit.formats.digest import content_digest
from auditkit.formats.dsse import PAYLOAD_TYPE, Envelope, Signature, pae
from auditkit.formats.record import RecordFile, RecordRow, StepRecord, expand, log_root
from auditkit.formats.run import LEAVES, RECORDS, STREAM_INDEX, Log, RunManifest, run_id
from auditkit.formats.step_audit import CHECKS, Digests, Machine, StepAudit, Verifier, sha256_of
from auditkit.formats.times import time_text
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict
from bench.process import ROOT

SEED = 20_260_102
TAMPERED = 20  # steps of which every auditor finds another result, the same one
UNSERVED = 0.002  # share of the steps whose data was not served to anybody
FORGED = 100  # auditors one of whose attestations has a broken signature
THRESHOLD, FAMILIES = 3, 2
KINDS = ("cpu-x86_64", "cpu-arm64", "cuda-sm_80", "cuda-sm_90", "cuda-sm_120")
BEGIN, SPAN = 1_767_323_045, 90 * 86_400  # Unix time and seconds in which the auditors were at work
WRONG = Digests("d" * 64, "e" * 64, "f" * 64)
DONE = "simulated.json"


@dataclass(frozen=True)
class Shape:
    """How much to simulate, and whether a file holds the attestations of an auditor ("lines") or one ("files")."""

    steps: int
    auditors: int
    attestations: int
    layout: str

    @property
    def each(self) -> int:
        """Attestations of one auditor, each of another step."""
        return self.attestations // self.auditors


def simulate(folder: Path, shape: Shape) -> dict[str, int]:
    """Make run/, policy.toml and attestations/ in a folder; how many steps have each status, and how much is refused.

    A folder that was completed with the same shape is used again.
    """
    done = folder / DONE
    if done.exists():
        kept = json.loads(done.read_text(encoding="utf-8"))
        if kept["shape"] == dataclasses.asdict(shape):
            return dict(kept["expected"])
    (folder / "attestations").mkdir(parents=True, exist_ok=True)
    records = RecordTable(make_run(folder / "run", shape.steps))
    (folder / "policy.toml").write_text(policy(shape.auditors), encoding="utf-8")
    processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    context, given = get_context("spawn"), (folder / "attestations", shape, records)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_start, initargs=given) as pool:
        list(pool.map(_write, range(shape.auditors), chunksize=4))
    expected = statuses(shape)
    done.write_text(json.dumps({"shape": dataclasses.asdict(shape), "expected": expected}), encoding="utf-8")
    return expected


def make_run(folder: Path, steps: int) -> list[StepRecord]:
    """The manifest and the records of a run of any length, made like the bundled sotu-tiny; no other file of it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = RunManifest.parse((ROOT / "manifests" / "sotu-tiny" / "run.json").read_bytes())
    recipe = dataclasses.replace(model.recipe, schedule=dataclasses.replace(model.recipe.schedule, total_steps=steps))
    identity = run_id("simulated", recipe, model.data)
    raw = np.random.default_rng(SEED).integers(0, 256, (steps, 4, 32), dtype=np.uint8)
    rows = [RecordRow(*(digest.tobytes().hex() for digest in four), 1, 2, 3) for four in raw]
    file = RecordFile(tuple(rows)).encode()
    (folder / RECORDS).write_bytes(file)
    parts, root = recipe.batch.micro_batches, model.states[0].root
    records = expand(rows, run_id=identity, numerics=1, micro_batches=parts, state0=root)
    sizes = {
        RECORDS: len(record.MAGIC) + steps * record.ROW_BYTES,
        LEAVES: len(leaves.MAGIC) + steps * parts * leaves.LEAF_BYTES,
        STREAM_INDEX: 16 + steps * 48,
    }
    listed = [dataclasses.replace(a, size=sizes.get(a.path, a.size)) for a in model.artifacts]
    listed = [dataclasses.replace(a, digest=content_digest(file)) if a.path == RECORDS else a for a in listed]
    manifest = dataclasses.replace(
        model,
        name="simulated",
        recipe=recipe,
        log=Log(steps, log_root(records)),
        artifacts=tuple(listed),
        states=model.states[:1],
    )
    (folder / "run.json").write_bytes(manifest.encode())
    return records


def policy(auditors: int) -> str:
    """A policy that lists every auditor."""
    head = f'format = "auditkit/policy/v1"\nthreshold = {THRESHOLD}\nfamilies = {FAMILIES}\n'
    each = (
        f'\n[[auditor]]\nname = "auditor {n}"\nkey = """{key(n).public.pem().decode()}"""\n' for n in range(auditors)
    )
    return head + "".join(each)


def key(auditor: int) -> PrivateKey:
    """The key of an auditor; everybody can know it."""
    return PrivateKey((auditor + 1).to_bytes(32, "little"))


def steps_of(shape: Shape, auditor: int) -> list[int]:
    """The steps that an auditor verified, at random."""
    return np.random.default_rng([SEED, auditor]).choice(shape.steps, shape.each, replace=False).tolist()


def verdict_of(shape: Shape, step: int) -> Verdict:
    """What everybody finds of a step."""
    if step % (shape.steps // TAMPERED) == 7:
        return Verdict.MISMATCH
    return Verdict.UNAVAILABLE if step % round(1 / UNSERVED) == 11 else Verdict.MATCH


def forged(shape: Shape, auditor: int) -> int:
    """Which of an auditor's attestations has a broken signature; -1 for none."""
    return 3 if auditor < min(FORGED, shape.auditors // 2) and shape.each > 3 else -1


def statuses(shape: Shape) -> dict[str, int]:
    """How many steps have each status under the policy, counted step by step."""
    keys: dict[int, list[int]] = {}
    for auditor in range(shape.auditors):
        for place, step in enumerate(steps_of(shape, auditor)):
            if place != forged(shape, auditor):
                keys.setdefault(step, []).append(auditor)
    found = dict.fromkeys(("mismatch", "disputed", "open", "partial", "covered"), 0)
    for step in range(shape.steps):
        found[_status(verdict_of(shape, step), keys.get(step, []))] += 1
    return found | {"refused": sum(forged(shape, auditor) >= 0 for auditor in range(shape.auditors))}


def _status(verdict: Verdict, auditors: list[int]) -> str:
    if not auditors or verdict is Verdict.UNAVAILABLE:
        return "open"
    if verdict is Verdict.MISMATCH:
        return "mismatch" if len(auditors) >= THRESHOLD else "disputed"
    families = {auditor % len(KINDS) for auditor in auditors}
    return "covered" if len(auditors) >= THRESHOLD and len(families) >= FAMILIES else "partial"


_given: tuple[Path, Shape, RecordTable]


def _start(folder: Path, shape: Shape, records: RecordTable) -> None:
    global _given
    _given = folder, shape, records


def _write(auditor: int) -> None:
    """Write what one auditor signed."""
    folder, shape, records = _given
    signer, statement = key(auditor), Statements(KINDS[auditor % len(KINDS)])
    envelopes = []
    for place, step in enumerate(steps_of(shape, auditor)):
        payload = statement.of(records[step], verdict_of(shape, step), BEGIN + (auditor * 7919 + step * 104_729) % SPAN)
        signature = bytearray(signer.sign(pae(PAYLOAD_TYPE, payload)))
        signature[8] ^= place == forged(shape, auditor)
        envelopes.append(Envelope(PAYLOAD_TYPE, payload, (Signature(signer.public.keyid, bytes(signature)),)).encode())
    if shape.layout == "lines":
        (folder / f"auditor-{auditor}.jsonl").write_bytes(b"".join(data + b"\n" for data in envelopes))
        return
    own = folder / f"auditor-{auditor}"
    own.mkdir(exist_ok=True)
    for step, data in zip(steps_of(shape, auditor), envelopes, strict=True):
        (own / f"step-{step}.{signer.public.keyid8}.json").write_bytes(data)


class Statements:
    """Statements of one auditor, each the canonical bytes of a real one, put together from the parts that stay alike.

    A statement takes 250 microseconds to make in the regular way; a million of them should not take most of the time.
    """

    def __init__(self, family: str) -> None:
        self._family = family
        self._templates: dict[Verdict, Callable[[dict[str, str]], str]] = {}

    def of(self, found: StepRecord, verdict: Verdict, at: int) -> bytes:
        """The statement about a step."""
        if verdict not in self._templates:
            real = self._real(found, verdict, at)
            self._templates[verdict] = _template(real, _values(found, at))
            assert self.of(found, verdict, at) == real
        return self._templates[verdict](_values(found, at)).encode("ascii")

    def _real(self, found: StepRecord, verdict: Verdict, at: int) -> bytes:
        expected, decided = Digests.of(found), verdict is not Verdict.UNAVAILABLE
        checks = dict.fromkeys(CHECKS, "ok") | ({} if verdict is Verdict.MATCH else {7: "failed"})
        audit = StepAudit(
            run_id=found.run,
            run="simulated",
            step=found.step,
            verdict=verdict,
            manifest="1" * 64,
            record=found.digest(),
            expected=expected,
            computed={Verdict.MATCH: expected, Verdict.MISMATCH: WRONG}.get(verdict),
            checks=checks,
            work=_values(found, at)["work"] if decided else "",
            numerics=1,
            verifier=Verifier("auditkit", "0.1.0", "2" * 64),
            machine=Machine("cpu", self._family, "", "3.12.1", "2.3.1", "", "Linux"),
            started=time_text(at),
            finished=time_text(at),
            milliseconds=65,
            automation="",
            message="" if verdict is Verdict.MATCH else "simulated",
        )
        return audit.statement(sha256_of(found)).encode()


def _values(found: StepRecord, at: int) -> dict[str, str]:
    """What differs from statement to statement."""
    digest = found.digest()
    return {
        "state": found.state_after,
        "gradient": found.gradient,
        "micro": found.micro_root,
        "record": digest,
        "sha256": sha256_of(found),
        "work": content_digest(digest.encode("ascii")),
        "at": time_text(at),
        "step": f'"step":{found.step},',
        "subject": f'/step/{found.step}"',
    }


def _template(real: bytes, values: dict[str, str]) -> Callable[[dict[str, str]], str]:
    """A statement with holes where these values are."""
    names = {value: name for name, value in values.items()}
    pieces = re.split("(" + "|".join(map(re.escape, names)) + ")", real.decode("ascii"))
    slots = [names.get(piece) for piece in pieces]

    def fill(values: dict[str, str]) -> str:
        return "".join(piece if slot is None else values[slot] for piece, slot in zip(pieces, slots, strict=True))

    return fill
