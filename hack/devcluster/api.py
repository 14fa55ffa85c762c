"""A client of the API server, just enough to wait for it and to describe nodes to it."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hack.devcluster.state import DevClusterError

_TIMEOUT = 5.0


class ApiUnavailableError(DevClusterError):
    """The API server did not answer."""


class Api:
    """One connection to an API server, kept open. Not for use by several threads."""

    def __init__(self, server: str, token: str, authority: Path) -> None:
        """Connect lazily.

        Args:
            server: URL of the API server.
            token: bearer token.
            authority: PEM file of the certificate authority.
        """
        context = ssl.create_default_context(cafile=str(authority))
        # The server's own certificate lacks a key identifier, which Python 3.13 asks for.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", ssl.VerifyFlags(0))
        self._connection = http.client.HTTPSConnection(
            urlsplit(server).netloc, timeout=_TIMEOUT, context=context
        )
        self._token = token

    def get(self, path: str) -> Any:
        """Return an object or a list."""
        return self._request("GET", path)

    def create(self, path: str, body: dict[str, Any]) -> Any:
        """Create an object in the collection at path."""
        return self._request("POST", path, body, "application/json")

    def merge(self, path: str, body: dict[str, Any]) -> Any:
        """Patch an object with a JSON merge patch."""
        return self._request("PATCH", path, body, "application/merge-patch+json")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, kind: str = "application/json"
    ) -> Any:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/json",
            "Content-Type": kind,
        }
        try:
            self._connection.request(method, path, json.dumps(body) if body else None, headers)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise ApiUnavailableError(f"no answer to {method} {path}: {error}") from error
        if response.status >= http.client.BAD_REQUEST:
            raise DevClusterError(
                f"{method} {path} answered {response.status}: {answer.decode(errors='replace')}"
            )
        return json.loads(answer)


def healthy(url: str) -> bool:
    """Tell whether a health URL of a component answers 200. Certificates are not looked at."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # Without the proxy of the environment: this is a host in the next namespace.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(url, timeout=1) as response:
            return bool(response.status == http.client.OK)
    except (OSError, http.client.HTTPException):
        return False
