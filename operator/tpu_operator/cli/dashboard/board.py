"""What the dashboard knows of the cluster: it lists and watches with the caller's rights, never writes."""

from __future__ import annotations

import asyncio
import difflib
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic

import msgspec

from tpu_operator.api import TPUInference, TPUJob
from tpu_operator.cli import happenings
from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.cli.dashboard.history import History
from tpu_operator.cli.server import Kind, Server, explain, read_as
from tpu_operator.core.snapshot import Custom
from tpu_operator.engine.client import ApiError
from tpu_operator.engine.informer import Informer
from tpu_operator.engine.resources import INFERENCES, TPUJOBS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from tpu_operator.cli.happenings import Happening
    from tpu_operator.engine.informer import Key
    from tpu_operator.engine.resources import Resource

OLD: Final = 90.0
"""Seconds without a word of the API server after which a page says that it may be old."""


class Shelf(Generic[Kind]):
    """The objects of one kind, as models.

    Args:
        server: the cluster.
        resource: the kind.
        model: its model.
        namespace: empty for all.

    Attributes:
        items: those that can be read, by key.
        refusal: why the kind is not shown; empty where it is.
    """

    def __init__(self, server: Server, resource: Resource, model: type[Kind], namespace: str) -> None:
        self._api = server.api
        self._resource = resource
        self._model = model
        self._namespace = namespace
        self.items: dict[Key, Kind] = {}
        self.refusal = ""
        self.informer = Informer(server.api, resource, Custom, namespace=namespace)
        self.informer.listen(self._take)

    def _take(self, key: Key, _: Custom | None, new: Custom | None) -> None:
        self.items.pop(key, None)
        if new is None:
            return
        try:
            # By way of the wire: what the informer keeps of an object is its own matter.
            self.items[key] = read_as(self._model, msgspec.json.decode(msgspec.json.encode(new)))
        except CommandError:
            return

    def find(self, key: Key) -> Kind:
        """An object. The server is not asked: names that come with addresses are no part of its paths.

        Raises:
            CommandError: it is not there.
        """
        if key in self.items:
            return self.items[key]
        near = difflib.get_close_matches("/".join(key), map("/".join, self.items), 1)
        raise CommandError(
            f"there is no {self._resource.kind} {'/'.join(key)}",
            Exit.NOT_FOUND,
            f"did you mean {near[0]}?" if near else "",
        )

    async def ask(self) -> ApiError | None:
        """Find out whether the kind may be listed; the answer if not.

        Raises:
            ApiError: there is none.
        """
        try:
            await self._api.get(self._resource.path(self._namespace), limit="1")
        except ApiError as error:
            if not error.answered:
                raise
            self.refusal = f"{self._resource.kind}s are not shown: {explain(error)}"
            return error
        return None


class Board:
    """TPUJobs and TPUInferences of a namespace, or of all. Use `watching` to have it kept up to date.

    Args:
        server: the cluster, and the namespace.
        everywhere: whether all namespaces are meant.
        clock: tells the time.

    Attributes:
        jobs: the TPUJobs.
        inferences: the TPUInferences.
    """

    def __init__(
        self,
        server: Server,
        *,
        everywhere: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._server = server
        self._everywhere = everywhere
        self.clock = clock
        namespace = "" if everywhere else server.namespace
        self.jobs = Shelf(server, TPUJOBS, TPUJob, namespace)
        self.inferences = Shelf(server, INFERENCES, TPUInference, namespace)
        self._shelves: tuple[Shelf[Any], ...] = (self.jobs, self.inferences)
        self._histories: defaultdict[Key, History] = defaultdict(History)
        self._ears: set[asyncio.Event] = set()
        for shelf in self._shelves:
            shelf.informer.listen(self._tell)

    @property
    def place(self) -> str:
        """Where the objects are, in words."""
        return "All namespaces" if self._everywhere else f"Namespace {self._server.namespace}"

    def _tell(self, key: Key, _: Custom | None, new: Custom | None) -> None:
        """Remember how an object came to be as it is, and wake those who listen."""
        if model := self.inferences.items.get(key):
            self._histories[key].add(model, self.clock())
        elif new is None:
            self._histories.pop(key, None)
        for ear in self._ears:
            ear.set()

    async def start(self) -> list[asyncio.Task[None]]:
        """Begin to watch what may be looked at, and return once all of it is known.

        Raises:
            ApiError: the API server does not answer, or nothing may be looked at.
        """
        refused = [error for shelf in self._shelves if (error := await shelf.ask())]
        if len(refused) == len(self._shelves):
            raise refused[0]
        shown = [shelf.informer for shelf in self._shelves if not shelf.refusal]
        tasks = [asyncio.create_task(informer.run()) for informer in shown]
        for informer in shown:
            await informer.synced.wait()
        return tasks

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """What is set when something has changed."""
        ear = asyncio.Event()
        self._ears.add(ear)
        try:
            yield ear
        finally:
            self._ears.discard(ear)

    def history(self, key: Key) -> History:
        """How a TPUInference came to be as it is."""
        return self._histories.get(key) or History()

    def at(self, namespace: str) -> Server:
        """The cluster, seen from a namespace that is shown.

        Raises:
            CommandError: it is not.
        """
        if not self._everywhere and namespace != self._server.namespace:
            raise CommandError(
                f"namespace {namespace} is not shown here",
                Exit.NOT_FOUND,
                "start `kubectl tpu dashboard` with --namespace or --all-namespaces",
            )
        return Server(self._server.api, namespace, self._server.place)

    async def events(self, item: TPUJob | TPUInference) -> Sequence[Happening]:
        """Events of an object; none where they may not be read."""
        server = self.at(item.metadata.namespace)
        try:
            return await happenings.read(server, item)
        except ApiError as error:
            if error.answered:
                return ()
            raise

    def warning(self) -> str:
        """What is to be said on every page; empty where there is nothing."""
        silent = max(shelf.informer.age() for shelf in self._shelves if not shelf.refusal)
        old = "the API server has said nothing for a while: what is shown may be old" if silent > OLD else ""
        return "; ".join(filter(None, [old, *(shelf.refusal for shelf in self._shelves)]))


@asynccontextmanager
async def watching(board: Board) -> AsyncIterator[Board]:
    """The same, kept up to date for as long as the context lasts.

    Raises:
        ApiError: the API server does not answer, or nothing may be looked at.
    """
    tasks = await board.start()
    try:
        yield board
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
