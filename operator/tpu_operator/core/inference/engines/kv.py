"""How vLLM hands KV caches from prefill to decode: connectors, their configuration, ports and variables.

Sources: vLLM-TorchTPU 0.29 and tpu-inference, whose connectors share one protocol towards routers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tpu_operator.api import RoleType
from tpu_operator.core.inference.engines.layout import disaggregated
from tpu_operator.core.inference.engines.run import Port

if TYPE_CHECKING:
    from tpu_operator.core.inference.engines.pod import Task

DEFAULT_CONNECTOR: Final = "TPUConnector"
TORCHTPU: Final = "vllm_torchtpu.distributed.kv_transfer.tpu_connector"
MODULES: Final = {
    "TPUConnector": TORCHTPU,
    "TPURaidenConnector": TORCHTPU,
    "TPUMultiConnector": TORCHTPU,
    "TPURaidenOffloadingConnector": TORCHTPU,
    "TPUConnectorHMA": "tpu_inference.distributed.tpu_connector_hma",
    "TPUOffloadConnector": "tpu_inference.offload.tpu_offload_connector",
}
"""Modules of the connectors that vLLM does not bring along itself."""
ROLES: Final = {RoleType.PREFILL: "kv_producer", RoleType.DECODE: "kv_consumer"}
KV_PORT: Final = 14579
TRANSFER_PORT: Final = 9100
SIDE_CHANNEL_PORT: Final = 9600
SHM_POOL_GB: Final = 8
"""Of /dev/shm, in place of the connector's 128: what is in there counts as the container's memory."""


def config(task: Task) -> str:
    """The value of `--kv-transfer-config`; empty for a role that hands nothing over.

    A decoder that finds the KV gone, since its prefiller has, computes it itself.
    """
    if not _hands_over(task):
        return ""
    connector = _connector(task)
    fields: dict[str, Any] = {
        "kv_connector": connector,
        "kv_role": ROLES.get(task.role.type, "kv_both"),
        "kv_ip": "$(POD_IP)",
        "kv_port": KV_PORT,
    }
    if connector in MODULES:
        fields["kv_connector_module_path"] = MODULES[connector]
    if task.role.type is not RoleType.PREFILL:
        fields["kv_load_failure_policy"] = "recompute"
    transfer = task.inference.spec.kv_transfer
    return json.dumps(fields | (transfer.parameters if transfer else {}), separators=(",", ":"))


def environment(task: Task) -> dict[str, str]:
    """Variables of the connectors.

    An engine's id has to differ from that of any engine before it: who still holds the old one's state would
    otherwise take it for that.
    """
    if not _hands_over(task):
        return {}
    env = {
        "TPU_KV_TRANSFER_PORT": str(TRANSFER_PORT),
        "TPU_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL_PORT),
        "TPU_NODE_ID": str(task.seat.host),
        "TPU_KV_SHM_POOL_GB": str(SHM_POOL_GB),
    }
    return env | (_raiden(task) if "Raiden" in _connector(task) else {})


def ports(task: Task) -> tuple[Port, ...]:
    """Ports at which other roles' hosts fetch KV."""
    if not _hands_over(task):
        return ()
    return (
        Port("kv", KV_PORT),
        Port("kv-transfer", TRANSFER_PORT),
        Port("kv-side-channel", SIDE_CHANNEL_PORT),
    )


def _raiden(task: Task) -> dict[str, str]:
    meta = task.inference.metadata
    unique = f"{meta.namespace}-{meta.name}-{task.role.name}"
    return {
        "TPU_USE_RAIDEN_KV_CACHE_MANAGER": "1",
        "TPU_RAIDEN_ADVERTISE_HOST": "$(POD_IP)",
        "TPU_RAIDEN_JOB_NAME": unique,
        "TPU_KV_TRANSFER_NAMESPACE": unique,
        "TPU_RAIDEN_ENGINE_ID": "$(POD_UID)",
    }


def _hands_over(task: Task) -> bool:
    """Whether KV leaves or reaches this role: roles that share the work, or a connector asked for."""
    if task.role.type is RoleType.ENCODE:
        return False
    return disaggregated(task) or task.inference.spec.kv_transfer is not None


def _connector(task: Task) -> str:
    transfer = task.inference.spec.kv_transfer
    return transfer.connector if transfer else DEFAULT_CONNECTOR
