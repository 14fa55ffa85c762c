"""Tokens that come late, broken or not at all."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.aio import client
from kubernetes.aio.config import kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from tpu_operator.engine import credentials
from tpu_operator.engine.client import ApiError, ApiServer
from tpu_operator.engine.credentials import CHECK, CHECK_AGAIN, CredentialsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLUGIN = """
import json, pathlib
print(pathlib.Path({answer!r}).read_text())
"""


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the kubeconfig that is found, with a user."""
    path = tmp_path / "kubeconfig"
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))

    def write(**user: Any) -> None:
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "me", "user": user}],
        }
        path.write_text(json.dumps(config))

    return write


async def loaded() -> Any:
    configuration = client.Configuration()
    await credentials.load(configuration)
    return configuration


async def token(configuration: client.Configuration) -> str | None:
    """What the next request would send."""
    found: str | None = await configuration.get_api_key_with_prefix("BearerToken")
    return found


@pytest.mark.looptime
async def test_a_token_file_is_looked_at_once_a_minute(
    tmp_path: Path, kubeconfig: Callable[..., None]
) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    kubeconfig(tokenFile=str(file))
    configuration = await loaded()
    file.write_text("two\n")
    await asyncio.sleep(CHECK - 1)
    assert await token(configuration) == "Bearer one"
    await asyncio.sleep(1)
    assert await token(configuration) == "Bearer two"


@pytest.mark.looptime
@pytest.mark.parametrize("broken", ["", " \n", "a b", "a\x00b", None])
async def test_the_last_good_token_stands_until_there_is_a_better_one(
    tmp_path: Path, kubeconfig: Callable[..., None], broken: str | None
) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    kubeconfig(tokenFile=str(file))
    configuration = await loaded()
    file.unlink() if broken is None else file.write_text(broken)
    await asyncio.sleep(CHECK)
    assert await token(configuration) == "Bearer one"
    file.write_text("two")
    assert await token(configuration) == "Bearer one", "not at every request"
    await asyncio.sleep(CHECK)
    assert await token(configuration) == "Bearer two"


@pytest.mark.looptime
async def test_a_service_account(tmp_path: Path) -> None:
    file, authority = tmp_path / "token", tmp_path / "ca.crt"
    file.write_text("one\n")
    authority.write_text("certificate")
    configuration = client.Configuration()
    where = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    loader = InClusterConfigLoader(str(file), str(authority), environ=where)
    loader.load_and_set(configuration)
    credentials.keep_fresh(configuration)
    assert await token(configuration) == "bearer one"
    for content, expected in (("", "one"), ("\n", "one"), ("two\n", "two")):
        file.write_text(content)
        loader.token_expires_at = loader.token_expires_at.min
        await asyncio.sleep(CHECK)
        assert await token(configuration) == f"bearer {expected}"


async def test_a_plugin_is_asked_again(
    tmp_path: Path, kubeconfig: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "CHECK", 0.0)
    answer, script = tmp_path / "answer", tmp_path / "plugin.py"
    script.write_text(PLUGIN.format(answer=str(answer)))

    def say(name: str, expires: str = "2020-01-01T00:00:00Z") -> None:
        status = {"token": name, "expirationTimestamp": expires}
        version = "client.authentication.k8s.io/v1"
        answer.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))

    say("one")
    version = "client.authentication.k8s.io/v1"
    kubeconfig(exec={"apiVersion": version, "command": sys.executable, "args": [str(script)]})
    configuration = await loaded()
    assert await token(configuration) == "Bearer one"
    say("two", "2999-01-01T00:00:00Z")
    assert await token(configuration) == "Bearer two"
    say("three")
    assert await token(configuration) == "Bearer two", "it has not expired"


async def test_a_plugin_that_fails(
    tmp_path: Path, kubeconfig: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "CHECK", 0.0)
    monkeypatch.setattr(credentials, "CHECK_AGAIN", 0.0)
    answer, script = tmp_path / "answer", tmp_path / "plugin.py"
    script.write_text(PLUGIN.format(answer=str(answer)))
    version = "client.authentication.k8s.io/v1"
    good = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "one"}}
    answer.write_text(json.dumps(good))
    kubeconfig(exec={"apiVersion": version, "command": sys.executable, "args": [str(script)]})
    configuration = await loaded()
    answer.unlink()
    assert await token(configuration) == "Bearer one"


@pytest.mark.looptime
async def test_after_a_failure_it_is_looked_for_sooner(
    tmp_path: Path, kubeconfig: Callable[..., None]
) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    kubeconfig(tokenFile=str(file))
    configuration = await loaded()
    file.unlink()
    await asyncio.sleep(CHECK)
    assert await token(configuration) == "Bearer one"
    file.write_text("two")
    await asyncio.sleep(CHECK_AGAIN)
    assert await token(configuration) == "Bearer two"


@pytest.mark.looptime
async def test_a_plugin_that_hangs() -> None:
    configuration: Any = client.Configuration()
    configuration.api_key["BearerToken"] = "Bearer one"
    configuration.refresh_api_key_hook = lambda _: asyncio.sleep(3600)
    credentials.keep_fresh(configuration)
    await asyncio.sleep(CHECK)
    began = asyncio.get_running_loop().time()
    assert await token(configuration) == "Bearer one"
    assert asyncio.get_running_loop().time() - began == credentials.LIMIT


@pytest.mark.parametrize("user", [{}, {"token": "fixed"}])
async def test_users_that_need_no_renewal(kubeconfig: Callable[..., None], user: dict[str, str]) -> None:
    kubeconfig(**user)
    assert await token(await loaded()) == (f"Bearer {user['token']}" if user else None)


async def test_neither_a_service_account_nor_a_kubeconfig(kubeconfig: Callable[..., None]) -> None:
    del kubeconfig  # is not written
    with pytest.raises(CredentialsError, match="set KUBECONFIG"):
        await loaded()


async def test_a_first_token_that_cannot_be_used(kubeconfig: Callable[..., None]) -> None:
    kubeconfig(token="two words")
    with pytest.raises(CredentialsError, match="token"):
        await loaded()


async def test_what_else_goes_wrong_is_as_a_server_that_does_not_answer() -> None:
    configuration: Any = client.Configuration()
    configuration.api_key["BearerToken"] = "Bearer one"

    def broken(_: client.Configuration) -> None:
        raise ValueError("broken")

    configuration.refresh_api_key_hook = broken
    server = ApiServer(client.ApiClient(configuration))
    with pytest.raises(ApiError) as caught:
        await server.get("/api/v1/pods")
    await server.close()
    assert (caught.value.status, caught.value.reason) == (0, "Credentials")


class TestPerson:
    """Who runs a command, as kubectl would find out."""

    async def load(self, file: str = "", context: str = "") -> tuple[str, str]:
        """Where the server is, and the namespace."""
        configuration = client.Configuration()
        namespace = await credentials.load_for_person(configuration, file, context)
        return configuration.host, namespace

    @pytest.fixture
    def file(self, tmp_path: Path) -> str:
        """A kubeconfig with two contexts."""
        path = tmp_path / "of-two"
        contexts = [
            {"name": "here", "context": {"cluster": "here", "user": "me"}},
            {"name": "there", "context": {"cluster": "there", "user": "me", "namespace": "team-a"}},
        ]
        clusters = [{"name": name, "cluster": {"server": f"http://{name}:1"}} for name in ("here", "there")]
        users = [{"name": "me", "user": {"token": "one"}}]
        config = {"current-context": "here", "contexts": contexts, "clusters": clusters, "users": users}
        path.write_text(json.dumps(config))
        return str(path)

    async def test_the_current_context(self, file: str) -> None:
        assert await self.load(file) == ("http://here:1", "default")

    async def test_another_context_and_its_namespace(self, file: str) -> None:
        assert await self.load(file, "there") == ("http://there:1", "team-a")

    async def test_a_context_that_is_not_there(self, file: str) -> None:
        with pytest.raises(CredentialsError, match="context nowhere cannot be used"):
            await self.load(file, "nowhere")

    async def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(CredentialsError, match=f"kubeconfig {tmp_path}/nope cannot be used"):
            await self.load(f"{tmp_path}/nope")

    async def test_in_a_pod_without_a_kubeconfig_it_is_the_service_account(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "namespace").write_text("team-b\n")
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nope"))
        monkeypatch.setattr(credentials, "NAMESPACE", tmp_path / "namespace")

        def load(client_configuration: Any) -> None:
            client_configuration.host = "https://10.0.0.1"
            client_configuration.api_key["BearerToken"] = "bearer one"

        monkeypatch.setattr("kubernetes.aio.config.load_incluster_config", load)
        assert await self.load() == ("https://10.0.0.1", "team-b")

    async def test_neither(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nope"))
        with pytest.raises(CredentialsError, match="the kubeconfig cannot be used"):
            await self.load()
