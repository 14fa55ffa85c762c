"""Who we are to the API server: where that is written down, and how it is kept up to date.

The library loads it, and asks `refresh_api_key_hook` for news before every request. What it finds then may be
a token file in the middle of a rotation, or a plugin that fails today: the last good token stands until there
is a better one, and none of that is more to a request than a server that does not answer.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kubernetes.aio import config

if TYPE_CHECKING:
    from collections.abc import Callable

Configuration = Any
"""The library's, whose types know of no hook."""

log = logging.getLogger(__name__)

TOKEN: Final = "BearerToken"  # noqa: S105
"""The library's name for it."""
CHECK: Final = 60.0
"""Seconds between looks for a new token: those of service accounts are renewed minutes before they end."""
CHECK_AGAIN: Final = 5.0
"""Seconds until the next look after one that has failed."""
LIMIT: Final = 10.0
"""Seconds for a plugin to come up with a token."""
NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where pods find the name of their namespace."""


class CredentialsError(Exception):
    """Nothing says where the API server is, or who we are to it."""


async def load(configuration: Configuration) -> None:
    """Take the pod's service account, or else the kubeconfig, and keep its token fresh.

    Raises:
        CredentialsError: there is neither, or it cannot be used.
    """
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as missing:
        try:
            loader = await config.load_kube_config(client_configuration=configuration)
        except Exception as error:  # whatever YAML, files and plugins may raise
            raise CredentialsError(
                f"no way to the API server, neither by a service account ({missing}) nor by a kubeconfig "
                f"({error}): in a cluster, give the pod a service account whose token is mounted; "
                "elsewhere, set KUBECONFIG to a file that has a current context"
            ) from error
        # It only does what is due: reads token files, runs plugins whose token has expired.
        configuration.refresh_api_key_hook = loader.load_and_set
    if TOKEN in configuration.api_key:
        keep_fresh(configuration)


async def load_for_person(configuration: Configuration, kubeconfig: str = "", context: str = "") -> str:
    """Take the kubeconfig as kubectl does, or else the pod's service account; returns the namespace.

    Args:
        configuration: gets the credentials.
        kubeconfig: a file; empty: as KUBECONFIG says, or the user's own.
        context: an entry of it; empty: the current one.

    Raises:
        CredentialsError: there is neither, or it cannot be used.
    """
    # The library reads the variable when it is imported, and notebooks set it later.
    file = kubeconfig or os.environ.get("KUBECONFIG") or None
    try:
        loader = await config.load_kube_config(
            config_file=file, context=context or None, client_configuration=configuration
        )
    except Exception as error:  # whatever YAML, files and plugins may raise
        if kubeconfig or context or not _in_pod(configuration):
            where = f"kubeconfig {kubeconfig}" if kubeconfig else "the kubeconfig"
            what = f", context {context}" if context else ""
            raise CredentialsError(f"{where}{what} cannot be used: {error}") from error
        return NAMESPACE.read_text(encoding="utf-8").strip()
    configuration.refresh_api_key_hook = loader.load_and_set
    if TOKEN in configuration.api_key:
        keep_fresh(configuration)
    return loader.current_context["context"].get("namespace") or "default"


def _in_pod(configuration: Configuration) -> bool:
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        return False
    keep_fresh(configuration)
    return True


def keep_fresh(configuration: Configuration) -> None:
    """Make the library's refreshing of the token careful and rare.

    Raises:
        CredentialsError: the token that there is now cannot be used.
    """
    try:
        configuration.api_key[TOKEN] = _usable(configuration.api_key[TOKEN])
    except ValueError as error:
        raise CredentialsError(str(error)) from error
    if configuration.refresh_api_key_hook is not None:
        configuration.refresh_api_key_hook = _Freshener(configuration.refresh_api_key_hook).refresh


class _Freshener:
    def __init__(self, hook: Callable[[Configuration], object]) -> None:
        self._hook = hook
        self._next = asyncio.get_running_loop().time() + CHECK

    async def refresh(self, configuration: Configuration) -> None:
        """Look for a new token if it is time; the old one stands if there is none that can be used."""
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        # At once, so that of many requests one looks.
        self._next = now + CHECK
        good = configuration.api_key[TOKEN]
        try:
            async with asyncio.timeout(LIMIT):
                looked = self._hook(configuration)
                if inspect.isawaitable(looked):
                    await looked
            good = _usable(configuration.api_key[TOKEN])
        except Exception as error:  # noqa: BLE001 - whatever token files and plugins may raise
            self._next = now + CHECK_AGAIN
            log.warning("no new token, the last one is used on: %r", error)
        finally:
            configuration.api_key[TOKEN] = good
            # That of service accounts puts itself in our place.
            configuration.refresh_api_key_hook = self.refresh


def _usable(key: str) -> str:
    """A value of the header `Authorization` without what editors and mounts add to it."""
    parts = key.split()
    if len(parts) != 2 or not key.strip().isprintable():  # noqa: PLR2004
        raise ValueError("the token is empty or has spaces or control characters in it")
    return " ".join(parts)
