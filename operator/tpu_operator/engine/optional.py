"""Informers of resources that a cluster need not serve."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.engine.client import ApiError
from tpu_operator.engine.informer import Informer, T

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

NOT_FOUND: Final = 404
PATIENCE: Final = 10.0
"""Seconds for which a new leader waits for a resource whose requests fail."""
ASK_AGAIN: Final = 15.0
"""Seconds after which a resource that is not served is asked for again."""


class OptionalInformer(Informer[T]):
    """Objects of a resource while the cluster serves it, and none while it does not.

    That a resource is not served is no failure. Its CRD may come, and go, while the operator runs.

    Attributes:
        served: whether the cluster serves the resource, as far as is known.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.served = False
        self._resting = False
        self._on_served: list[Callable[[], None]] = []

    def listen_served(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the cluster begins to serve the resource, or ceases to."""
        self._on_served.append(listener)

    def age(self) -> float:
        """Seconds since the server last said anything; none while it need not be asked for what it lacks."""
        return 0.0 if self._resting else super().age()

    def stalled(self) -> float:
        """As of all informers; what is not served has no watch that could be silent."""
        return 0.0 if self._resting else super().stalled()

    async def refresh(self) -> None:
        """As of all informers, but what fails for PATIENCE is done without until it works again.

        An extension whose server or conversion is broken must not keep a new leader from everything else.
        """
        begun = asyncio.get_running_loop().time()
        fresh = asyncio.ensure_future(super().refresh())
        try:
            while not fresh.done():
                await asyncio.wait({fresh}, timeout=PATIENCE)
                if not fresh.done() and self._tried > begun:
                    log.warning(
                        "%s cannot be read: going on as if they were not served", self.resource.plural
                    )
                    self._lack()
                    return
        finally:
            fresh.cancel()

    async def _read(self) -> bool:
        try:
            await self._list()
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            self._hear()
        else:
            self._set_served(True)
            self._be_fresh()
            return True
        self._lack()
        self._be_fresh()
        await self._rest()
        return False

    async def _rest(self) -> None:
        self._resting = True
        try:
            await asyncio.sleep(ASK_AGAIN * random.uniform(1.0, 1.5))  # noqa: S311
        finally:
            self._resting = False
            self._hear()

    def _lack(self) -> None:
        """Be without it: there is nothing of it, and nobody serves it."""
        self._replace({})
        self._set_served(False)

    def _set_served(self, served: bool) -> None:
        if served != self.served:
            self.served = served
            for listener in self._on_served:
                listener()
