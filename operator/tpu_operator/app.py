"""kopf as the shell of the process: signals, start, stop, liveness. The only module that imports kopf.

kopf watches nothing here: its watches end the process on server errors and lose deletions, so that all
reading is done by our informers (docs/adr/0003-kopf-is-the-shell.md).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
from asyncio import sslproto
from typing import TYPE_CHECKING, Any, Final

import kopf

from tpu_operator.engine import metrics
from tpu_operator.engine.client import ApiServer
from tpu_operator.engine.credentials import CredentialsError
from tpu_operator.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpu_operator.settings import Settings

log = logging.getLogger(__name__)

TLS_BUFFER: Final = 32 << 10
"""Bytes that a TLS connection takes in at once: two records. asyncio's own 256 KiB, for each of the fifty or
so connections that a leader has open, are 10 MiB of what it needs at its busiest."""


class _Endless:
    """Pauses between attempts of a request, without an end: an outage must not end the process."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 2.0, 5.0), itertools.repeat(10.0))


class _JsonFormatter(logging.Formatter):
    """One JSON object a line, as log collectors like it."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "severity": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def setup_logging(level: str, log_format: str) -> None:
    """Log to stderr."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if log_format == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Both speak of routine: kopf of handlers, aiohttp of every probe.
    for name in ("kopf", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)


class App:
    """One run of the operator under kopf.

    Args:
        settings: the operator's settings.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._runner: Runner | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    async def run(self) -> int:
        """Run until told to stop, or until something is wrong; the exit code."""
        try:
            api = await ApiServer.connect()
        except CredentialsError as error:
            # Before kopf, which would say it in a hundred lines.
            log.error("not started: %s", error)  # noqa: TRY400
            return 1
        await kopf.operator(
            registry=self._registry(),
            memo=api,
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            liveness_endpoint=f"http://0.0.0.0:{self._settings.health_port}/healthz",
            stop_flag=self._stop,
        )
        if self._error is not None:
            log.error("stopping: %s", _innermost(self._error), exc_info=self._error)
        return 0 if self._error is None else 1

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(self._start)
        kopf.on.cleanup(registry=registry)(self._clean_up)
        kopf.on.probe(registry=registry, id="watches", errors=kopf.ErrorsMode.PERMANENT)(self._probe)
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(kopf.login_with_service_account)
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(kopf.login_with_kubeconfig)
        return registry

    async def _start(self, settings: kopf.OperatorSettings, memo: ApiServer, **_: Any) -> None:
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.posting.enabled = False
        settings.networking.error_backoffs = _Endless()
        self._runner = Runner(self._settings, memo)
        self._task = asyncio.create_task(self._work(self._runner))
        self._task.add_done_callback(self._ended)

    async def _work(self, runner: Runner) -> None:
        server = await metrics.serve(self._settings.metrics_port, runner.unready)
        try:
            await runner.run()
        finally:
            await server.cleanup()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._error = task.exception()
        self._stop.set()

    async def _clean_up(self, **_: Any) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._runner is not None:
            await self._runner.stop()

    async def _probe(self, **_: Any) -> str:
        silent = self._runner.silent() if self._runner else ""
        if silent:
            raise kopf.PermanentError(f"the watch of {silent} is silent")
        return "ok"


def _innermost(error: BaseException) -> BaseException:
    """The exception that groups were made around."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def run(settings: Settings) -> int:
    """Run the operator; the exit code."""
    setup_logging(settings.log_level, settings.log_format)
    sslproto.SSLProtocol.max_size = TLS_BUFFER
    # The API server accepts documents of 10,000 levels; one user's must not stop the reading of everybody's.
    sys.setrecursionlimit(30_000)

    async def main() -> int:
        return await App(settings).run()

    return asyncio.run(main())
