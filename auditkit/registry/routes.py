"""The HTTP interface; docs/registry.md describes every answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from auditkit.errors import AuditkitError, Unavailable
from auditkit.formats.tiles import BUNDLE_BYTES, CHECKPOINT
from auditkit.registry import bodies
from auditkit.registry.answers import JSON, error_answer, json_answer
from auditkit.registry.guard import address_of
from auditkit.registry.intake import Keys, Receipt
from auditkit.registry.pages import Pages, coverage_value
from auditkit.registry.refusals import NotFound, TooMany, failure
from auditkit.registry.runs import KnownRun
from auditkit.registry.service import Registry
from auditkit.trust.keys import PublicKey
from auditkit.verdict import Verdict

FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
BRIEFLY = {"Cache-Control": "public, max-age=2"}
STEP_ATTESTATIONS = 1000  # listed of one step

_DIGEST = re.compile("[0-9a-f]{64}")
_STEP = re.compile("0|[1-9][0-9]{0,7}")
# C2SP tlog-tiles: at most six levels of tiles hold any log
_TILE = re.compile(r"tile/(?:entries|[0-5])/(?:x[0-9]{3}/){0,5}[0-9]{3}(?:\.p/[1-9][0-9]{0,2})?")
_KEY = re.compile(r"keys/[0-9a-f]{64}\.pem")


class Routes:
    """The endpoints of one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._limits = registry, registry.setting.limits
        self._pages = Pages(registry)

    def all(self) -> list[Route]:
        """Every route."""
        gets = {
            "/": self.front,
            "/runs/{run}": self.page,
            "/v1/runs": self.runs,
            "/v1/runs/{run}": self.manifest,
            "/v1/runs/{run}/coverage": self.coverage,
            "/v1/runs/{run}/records/{step}": self.record,
            "/v1/runs/{run}/steps/{step}": self.step,
            "/v1/attestations/{envelope}": self.attestation,
            "/v1/keys/{keyid}": self.key,
            "/v1/health": self.health,
            "/log/{path:path}": self.log,
        }
        posts = {
            "/v1/attestations": self.submit,
            "/v1/attestations/batch": self.submit_batch,
            "/v1/leases": self.lease,
        }
        # a literal path before a parameter in the same place
        return [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()),
        ]

    async def submit(self, request: Request) -> Response:
        """POST /v1/attestations: one envelope; 201 when it is new, 200 when it was there."""
        limits = self._limits
        keys = self._admitted(request)
        self._pace(request, 1)
        data = await bodies.read_body(
            request, bodies.ENVELOPE_TYPES, limit=limits.envelope_bytes, seconds=limits.body_seconds
        )
        (found,) = await self._take([data], keys)
        if isinstance(found, AuditkitError):
            return error_answer(found)
        return json_answer(_taken(found), 200 if found.known else 201)

    async def submit_batch(self, request: Request) -> Response:
        """POST /v1/attestations/batch: envelopes, one a line; the answer has one result a line, in their order."""
        limits = self._limits
        keys = self._admitted(request)
        data = await bodies.read_body(
            request, bodies.LINES_TYPES, limit=limits.batch_bytes, seconds=limits.body_seconds
        )
        found = bodies.lines(data, limits.batch_envelopes)
        self._pace(request, len(found))
        results = [_result(item) for item in await self._take(found, keys)]
        return json_answer({"format": "auditkit/registry-results/v1", "results": results})

    async def lease(self, request: Request) -> Response:
        """POST /v1/leases: a signed request for steps."""
        limits = self._limits
        keys = self._admitted(request)
        self._pace(request, 1)
        data = await bodies.read_body(
            request, bodies.ENVELOPE_TYPES, limit=limits.lease_request_bytes, seconds=limits.body_seconds
        )
        leases = await run_in_threadpool(self._registry.desk.grant, data, keys)
        return Response(leases.encode(), 201, media_type=JSON)

    async def front(self, _: Request) -> Response:
        """GET /: the coverage page of the only run, or a list of the runs."""
        return await self._html(None)

    async def page(self, request: Request) -> Response:
        """GET /runs/{run}: the coverage page of a run."""
        return await self._html(self._run(request))

    async def runs(self, _: Request) -> Response:
        """GET /v1/runs: the registry and its runs."""
        registry = self._registry
        return json_answer(
            {
                "format": "auditkit/registry/v1",
                "origin": registry.setting.origin,
                "log_key": registry.vkey,
                "addresses": list(registry.setting.addresses),
                "open": registry.setting.admission.is_open,
                "policy": registry.setting.policy,
                "attestations": await run_in_threadpool(registry.database.size),
                "batch_envelopes": self._limits.batch_envelopes,
                "batch_bytes": self._limits.batch_bytes,
                "lease_steps": self._limits.lease_steps,
                "runs": [{"run": run.run_id, "name": run.name, "steps": run.size} for run in registry.runs.all()],
            }
        )

    async def manifest(self, request: Request) -> Response:
        """GET /v1/runs/{run}: run.json."""
        return Response(self._run(request).manifest, media_type=JSON)

    async def coverage(self, request: Request) -> Response:
        """GET /v1/runs/{run}/coverage: the status of every step, in ranges."""
        run = self._run(request)
        covered = await run_in_threadpool(self._registry.ledger.coverage, run)
        return json_answer(await run_in_threadpool(coverage_value, covered), headers=BRIEFLY)

    async def record(self, request: Request) -> Response:
        """GET /v1/runs/{run}/records/{step}: the canonical record."""
        run = self._run(request)
        data = await run_in_threadpool(run.record, _step(request, run))
        return Response(data, 200, FOREVER, JSON)

    async def step(self, request: Request) -> Response:
        """GET /v1/runs/{run}/steps/{step}: who said what about a step."""
        run = self._run(request)
        step = _step(request, run)
        rows = await run_in_threadpool(self._registry.database.of_step, run.number, step, most=STEP_ATTESTATIONS)
        listed = [
            {
                "position": position,
                "envelope": envelope.hex(),
                "keyid": keyid.hex(),
                "verdict": Verdict(code).name,
                "part": part,
            }
            for position, envelope, keyid, code, part in rows
        ]
        return json_answer(
            {"format": "auditkit/registry-step/v1", "run": run.run_id, "step": step, "attestations": listed}
        )

    async def attestation(self, request: Request) -> Response:
        """GET /v1/attestations/{sha256}: an envelope as it came."""
        name = _digest(request, "envelope")
        found = await run_in_threadpool(self._registry.database.body, bytes.fromhex(name))
        if found is None:
            raise NotFound(f"there is no attestation {name} here")
        position, body = found
        return Response(body, 200, {**FOREVER, "Auditkit-Position": str(position)}, JSON)

    async def key(self, request: Request) -> Response:
        """GET /v1/keys/{keyid}: the public key that has signed something here, as PEM."""
        keyid = _digest(request, "keyid")
        raw = await run_in_threadpool(self._registry.database.key, bytes.fromhex(keyid))
        known = self._registry.setting.admission.keys.get(keyid)
        if raw is None and known is None:
            raise NotFound(f"there is no key {keyid} here")
        pem = known.pem() if known is not None else PublicKey(raw or b"").pem()
        return Response(pem, 200, FOREVER, "application/x-pem-file")

    async def health(self, _: Request) -> Response:
        """GET /v1/health: whether the database answers, and how far the log is."""
        size = await run_in_threadpool(self._registry.database.size)
        return json_answer({"status": "ok", "attestations": size, "logged": self._registry.log.size})

    async def log(self, request: Request) -> Response:
        """GET /log/..: the files of the attestation log."""
        path = request.path_params["path"]
        is_checkpoint, is_key = path == CHECKPOINT, _KEY.fullmatch(path) is not None
        if not is_checkpoint and not is_key and _TILE.fullmatch(path) is None:
            raise NotFound("there is no such file in a log")
        try:
            data = await run_in_threadpool(self._registry.log.read, path, BUNDLE_BYTES)
        except Unavailable:
            raise NotFound("the log has no such file") from None
        if is_checkpoint:
            return Response(data, 200, {"Cache-Control": "no-cache"}, "text/plain; charset=utf-8")
        return Response(data, 200, FOREVER, "application/x-pem-file" if is_key else "application/octet-stream")

    async def _take(self, envelopes: Sequence[bytes], keys: Keys) -> list[Receipt | AuditkitError]:
        # Shielded: who asked may go away, what was taken is stored all the same.
        return await asyncio.shield(self._registry.intake.put(envelopes, keys))

    async def _html(self, run: KnownRun | None) -> Response:
        page = await run_in_threadpool(self._pages.html, run)
        # The page carries a policy of its own, with the digest of its script; this one is for whatever else is served.
        return Response(page, 200, {**BRIEFLY}, "text/html; charset=utf-8")

    def _admitted(self, request: Request) -> Keys:
        brought = bodies.brought_keys(request, self._limits.keys_per_request)
        admission = self._registry.setting.admission
        request.state.cost = self._limits.stranger_cost if admission.has_strangers(brought) else 1
        return admission.known(brought)

    def _pace(self, request: Request, count: int) -> None:
        wait = self._registry.envelopes.take(address_of(request.scope), count * request.state.cost)
        if wait:
            raise TooMany("too many submissions from this address", wait)

    def _run(self, request: Request) -> KnownRun:
        name = request.path_params["run"]
        run = self._registry.runs.get(name)
        if run is None:
            raise NotFound("this registry does not serve that run", hint="GET /v1/runs lists its runs")
        return run


def _step(request: Request, run: KnownRun) -> int:
    text = request.path_params["step"]
    if _STEP.fullmatch(text) is None or int(text) >= run.size:
        raise NotFound(f"run {run.name} has steps 0 to {run.size - 1}")
    return int(text)


def _digest(request: Request, name: str) -> str:
    text: str = request.path_params[name]
    if _DIGEST.fullmatch(text) is None:
        raise NotFound("64 lower-case hexadecimal digits are expected")
    return text


def _taken(receipt: Receipt) -> dict[str, Any]:
    return {
        "format": "auditkit/registry-receipt/v1",
        "status": "known" if receipt.known else "taken",
        "envelope": receipt.envelope,
        "position": receipt.position,
    }


def _result(found: Receipt | AuditkitError) -> dict[str, Any]:
    """One line's result in a batch."""
    if isinstance(found, Receipt):
        return _taken(found)
    if isinstance(found, TooMany):
        return {**failure(found), "status": "later", "seconds": found.seconds}
    return {**failure(found), "status": "later" if isinstance(found, Unavailable) else "refused"}
