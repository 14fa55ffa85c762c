"""Traces of the real torch_tpu, emulated, in processes of torchrun that know nothing of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.torchtpu.hosts import SECONDS
from tests.unit.runtime.harness import get, post, until

if TYPE_CHECKING:
    from tests.torchtpu.conftest import Start

TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("tpu_dist")
x = torch.ones(64, 64, device="tpu")
begun = False
while True:
    x = torch.tanh(x @ x)
    dist.all_reduce(x)
    if not begun:
        print(f"rank {dist.get_rank()} has begun", flush=True)
        begun = True
"""


def test_ranks_of_torchrun_are_traced(start: Start) -> None:
    job = start("-c", TRAIN, hosts=1, processes=2)
    host = job.hosts[0]
    until(lambda: host.stdout.count(b"has begun") == 2 or host.process.poll() is not None, "ranks", SECONDS)
    status, text = post(job.port, "/profile", {"seconds": 2})
    assert status == 200, f"{text}{job.said}"
    answer = json.loads(text)
    assert answer["errors"] == []
    # Those of two ranks, and none of torchrun's agent.
    assert len(answer["files"]) == 2
    assert all(file["bytes"] > 10_000 for file in answer["files"]), answer
    assert get(job.port, "/stacks")[1].count("process ") == 2
    assert host.process.poll() is None
