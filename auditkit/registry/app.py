"""The ASGI application of a registry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from auditkit.registry.guard import Guard, handlers
from auditkit.registry.routes import Routes
from auditkit.registry.service import Registry


def application(registry: Registry) -> Guard:
    """The application; `registry` works from its start to its end (ASGI lifespan)."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with registry.running():
            yield

    routes = Routes(registry).all()
    app = Starlette(routes=routes, exception_handlers=handlers(), lifespan=lifespan)
    app.router.redirect_slashes = False
    return Guard(app, registry.setting.limits, registry.setting.clock.now)
