"""The pages over HTTP: on loopback, for who knows the token, and for reading alone.

What others have written into objects is escaped where HTML is made. What is said here is that it would be
of no use otherwise either: no script, style, image or connection but the page's own, no frame, no form.
Requests are refused that do not name loopback as their host, as those of a site do whose name was made to
point here, and those without the token, as other users of the machine reach the port too.
"""

from __future__ import annotations

import hmac
import json
from contextlib import aclosing, suppress
from importlib import resources
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tpu_operator.cli.command import CommandError, Exit
from tpu_operator.cli.dashboard import states
from tpu_operator.cli.dashboard.markup import Markup, join, tag
from tpu_operator.cli.server import explain
from tpu_operator.engine.client import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from tpu_operator.cli.dashboard.board import Board

LOOPBACK: Final = "127.0.0.1"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
STREAM: Final = "/stream"
"""Before the path of a page: its states as server-sent events."""
TOKEN: Final = "token"  # noqa: S105 - the name of a parameter
STATUS: Final = {Exit.NOT_FOUND: 404, Exit.REFUSED: 403}


class Site:
    """The pages.

    Args:
        board: what they show.
        token: what a browser has to bring along.
        port: where they are served.
    """

    def __init__(self, board: Board, token: str, port: int) -> None:
        self._board = board
        self._token = token
        self._hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
        self._cookie = f"kubectl-tpu-dashboard-{port}"
        files = resources.files(__package__) / "static"
        self._static = {name: (files / name).read_bytes() for name in STATIC}

    def application(self) -> web.Application:
        """What a server serves."""
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(_add_headers)
        for path in ("/", "/{kind:jobs|inferences}/{namespace}/{name}"):
            app.router.add_get(path, self._page)
            app.router.add_get(STREAM + path, self._stream, allow_head=False)
        app.router.add_get("/static/{name}", self._file)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Who may ask, and what is said when something goes wrong."""
        if request.host not in self._hosts:
            return web.Response(status=403, text="this is only served to loopback\n")
        if hmac.compare_digest(request.query.get(TOKEN, "").encode(), self._token.encode()):
            return self._let_in()
        if not hmac.compare_digest(request.cookies.get(self._cookie, "").encode(), self._token.encode()):
            return web.Response(
                status=401, text="open the address that `kubectl tpu dashboard` has printed\n"
            )
        try:
            return await handler(request)
        except CommandError as error:
            return _failure(error)
        except ApiError as error:
            return _failure(explain(error))

    def _let_in(self) -> web.Response:
        """Keep the token in a cookie, and out of addresses."""
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="Strict", path="/")
        return answer

    def _states(self, request: web.Request) -> AsyncGenerator[Markup, None]:
        kind = request.match_info.get("kind")
        if kind is None:
            return states.overviews(self._board)
        return states.PAGES[kind](self._board, (request.match_info["namespace"], request.match_info["name"]))

    async def _page(self, request: web.Request) -> web.Response:
        async with aclosing(self._states(request)) as found:
            async for state in found:
                return _html(document(request.match_info.get("name", "TPUs"), self._with_warning(state)))
        raise CommandError("it was deleted a moment ago", Exit.NOT_FOUND)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with suppress(ConnectionResetError):  # whoever looked has gone
            try:
                await self._tell(request, answer)
            except (CommandError, ApiError) as error:
                await self._part(request, answer, explain(error) if isinstance(error, ApiError) else error)
        return answer

    async def _tell(self, request: web.Request, answer: web.StreamResponse) -> None:
        """Send each state that differs from the one before, until the object is deleted."""
        last = ""
        async with aclosing(self._states(request)) as found:
            async for state in found:
                if not answer.prepared:
                    await answer.prepare(request)
                new = self._with_warning(state)
                await answer.write(_event(new) if new != last else b": still there\n\n")
                last = new
        raise CommandError("it was deleted a moment ago", Exit.NOT_FOUND)

    async def _part(self, request: web.Request, answer: web.StreamResponse, error: CommandError) -> None:
        """Say why there are no more states.

        Only pages that have shown the object listen: one that is not there is deleted by now. A browser that
        gets another status than 200 never asks again; after a stream that has ended it does, so it ends
        where the API server may be back later.

        Raises:
            CommandError: it is none of that.
        """
        if not answer.prepared:
            if error.code not in {Exit.NOT_FOUND, Exit.UNREACHABLE}:
                raise error
            await answer.prepare(request)
        if error.code is Exit.NOT_FOUND:
            await answer.write(b"event: end\n" + _event(tag("p", "It is deleted.", class_="empty")))
        else:
            await answer.write(_event(_said(error)))

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in STATIC:
            raise web.HTTPNotFound
        return web.Response(body=self._static[name], content_type=STATIC[name], charset="utf-8")

    def _with_warning(self, state: Markup) -> Markup:
        warning = self._board.warning()
        return join([tag("p", warning, class_="banner") if warning else None, state])


def document(title: str, main: Markup, *, live: bool = True) -> Markup:
    """A whole page; live, it listens for its next states."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width"),
        tag("title", title),
        tag("link", rel="icon", href="/static/icon.svg"),
        tag("link", rel="stylesheet", href="/static/page.css"),
        tag("script", src="/static/page.js", defer=True) if live else None,
    )
    lost = tag("p", "The connection is lost: does `kubectl tpu dashboard` still run?", class_="banner")
    nav = tag("nav", tag("a", "kubectl tpu dashboard", href="/"))
    body = tag("body", nav, tag("div", lost, id="lost", hidden=True), tag("main", main))
    return join([Markup("<!doctype html>"), tag("html", head, body, lang="en")])


def _html(whole: Markup, status: int = 200) -> web.Response:
    return web.Response(text=whole, status=status, content_type="text/html", charset="utf-8")


def _failure(error: CommandError) -> web.Response:
    return _html(document("Error", _said(error), live=False), STATUS.get(error.code, 502))


def _said(error: CommandError) -> Markup:
    return join([tag("h1", "This cannot be shown"), tag("p", str(error)), tag("p", error.advice)])


def _event(state: Markup) -> bytes:
    """A server-sent event, in one line."""
    return f"data: {json.dumps(state)}\n\n".encode()


async def _add_headers(_: web.Request, answer: web.StreamResponse) -> None:
    answer.headers.update(HEADERS)
