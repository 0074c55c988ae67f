"""A registry in this process behind its application, with a clock that stands until a test moves it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx

from auditkit.formats.policy import Auditor, Excluded, Policy
from auditkit.registry.app import application
from auditkit.registry.database import Database
from auditkit.registry.folder import Folder, init, open_database
from auditkit.registry.limits import REGISTRY_LIMITS, RegistryLimits
from auditkit.registry.opening import admission, in_words
from auditkit.registry.runs import KnownRun, Runs
from auditkit.registry.service import Registry, Setting
from auditkit.trust.policy import Trust
from tests.registry.makers import NOW, key

Result = TypeVar("Result")
ADDRESS = "http://registry.test"
ORIGIN = "registry.test/attestations"
JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}


class HandClock:
    """A clock that is moved by hand; waiting moves it too."""

    def __init__(self, seconds: float = NOW) -> None:
        self.seconds = float(seconds)

    def now(self) -> float:
        """The time since some moment."""
        return self.seconds

    def wall(self) -> float:
        """Unix time."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.seconds += seconds


@dataclass
class Options:
    """What a test wants otherwise than usual: keys 1 to 4 are auditors, key 9 is excluded, everything is fast."""

    auditors: Sequence[int] = (1, 2, 3, 4)
    threshold: int = 2
    is_open: bool = False
    database: str | None = None
    limits: RegistryLimits = field(
        default_factory=lambda: replace(REGISTRY_LIMITS, coverage_seconds=0.0, log_seconds=0.0)
    )


class Service:
    """A running registry and a client of it."""

    def __init__(self, registry: Registry, clock: HandClock, told: list[str]) -> None:
        self.registry, self.clock, self.told = registry, clock, told
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        transport = httpx.ASGITransport(application(registry), raise_app_exceptions=False, client=("203.0.113.9", 1234))
        self.client = httpx.AsyncClient(transport=transport, base_url=ADDRESS)
        self._running = registry.running()
        self.wait(self._running.__aenter__())

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine, run in the registry's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request."""
        return self.wait(self.client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        """One GET."""
        return self.ask("GET", path, **options)

    def post(self, envelope: bytes, **headers: str) -> httpx.Response:
        """Submit one envelope; `headers` with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", "/v1/attestations", content=envelope, headers={**JSON, **named})

    def post_many(self, envelopes: Sequence[bytes]) -> list[httpx.Response]:
        """Submit several envelopes at the same time, each by itself."""

        async def all_of_them() -> list[httpx.Response]:
            asked = (self.client.post("/v1/attestations", content=data, headers=JSON) for data in envelopes)
            return list(await asyncio.gather(*asked))

        return self.wait(all_of_them())

    def close(self) -> None:
        """Stop in an orderly way."""
        self.wait(self._running.__aexit__(None, None, None))
        self.wait(self.client.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()


class _Kept(Runs):
    """Runs that a test goes on with."""

    def close(self) -> None:
        """Nothing: who made them closes them."""


def policy(options: Options) -> Policy:
    """The policy of a test."""
    listed = tuple(Auditor(f"auditor {n}", key(n).public.raw) for n in options.auditors)
    return Policy(options.threshold, auditors=listed, excluded=(Excluded(key(9).public.keyid, "left the project"),))


def open_registry(
    folder: Path, run: KnownRun, options: Options, clock: HandClock, told: list[str], database: Database | None = None
) -> Registry:
    """The registry of a folder, opened as `registry serve` does."""
    trust = Trust(policy(options))
    origin, private = Folder(folder).key()
    setting = Setting(
        origin=origin,
        log_folder=Folder(folder).log,
        log_key=private,
        addresses=(ADDRESS,),
        admission=admission(trust, is_open=options.is_open),
        voters={run.run_id: trust},
        names=trust.names,
        policy=in_words(trust.policy),
        beacon=lambda: b"beacon of the tests",
        limits=options.limits,
        clock=clock,
        tell=told.append,
    )
    return Registry(setting, database or open_database(Folder(folder), options.database), _Kept([run]))


@contextmanager
def serving(folder: Path, run: KnownRun, options: Options | None = None) -> Iterator[Service]:
    """A registry in `folder`, which is made if there is none."""
    options = options or Options()
    if not Folder(folder).public.exists():
        init(folder, ORIGIN, address=options.database)
    clock, told = HandClock(), list[str]()
    service = Service(open_registry(folder, run, options, clock, told), clock, told)
    try:
        yield service
    finally:
        service.close()
