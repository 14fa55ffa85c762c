"""`kubectl tpu profile` and `stacks` of a real JAX program over four hosts, which knows of neither."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.e2e.kube import python, wait_for
from tests.e2e.test_cli import Tpu, tpu
from tpu_operator.cli.command import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.kube import Kube

__all__ = ["tpu"]

TRAIN = """
import jax
import jax.numpy as jnp

jax.distributed.initialize()
step = jax.pmap(lambda x: jax.lax.psum(jnp.tanh(x @ x), "chips"), axis_name="chips")
x = jnp.ones((jax.local_device_count(), 256, 256))
print(f"host {jax.process_index()} begins", flush=True)
while True:
    x = step(x).block_until_ready()
"""


def test_a_trace_of_all_hosts_at_once(kube: Kube, tpu: Tpu, tmp_path: Path) -> None:
    kube.apply(python("train", TRAIN, run={"launcher": "jax"}))
    tpu("wait", "train", "--for=running", "--timeout=5m")

    def begun() -> bool:
        return tpu("logs", "train").count("begins") == 4

    wait_for("all hosts have begun", begun, 120)
    answer = json.loads(tpu("profile", "train", "--time=1s", f"--folder={tmp_path}", "-o", "json"))
    assert [(host["files"], host["errors"]) for host in answer["hosts"]] == [
        ([f"train-0-{host}.xplane.pb"], []) for host in range(4)
    ]
    for host in range(4):
        trace = (tmp_path / "plugins" / "profile" / answer["run"] / f"train-0-{host}.xplane.pb").read_bytes()
        assert b"/host:CPU" in trace
        assert b"psum" in trace
    stacks = json.loads(tpu("stacks", "train", "-o", "json"))
    assert all('File "<string>", line ' in host["stacks"] for host in stacks), stacks
    assert kube.status("train")["restarts"]["total"] == 0
    assert tpu("why", "train", fails=Exit.DONE)
