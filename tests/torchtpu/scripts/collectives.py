"""Each collective of torch.distributed on four emulated TPUs, compared with what it should give."""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group()
RANK, WORLD = dist.get_rank(), dist.get_world_size()
ALL = range(WORLD)
assert "tpu:tpu_dist" in dist.get_backend_config(), dist.get_backend_config()


def tpu(*values: float, dtype: Any = torch.float32) -> Any:
    return torch.tensor(values, dtype=dtype, device="tpu")


def same(actual: Any, *values: float) -> None:
    assert actual.cpu().flatten().tolist() == list(values), (RANK, actual.cpu().tolist(), values)


def test_all_reduce() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64):
        tensor = tpu(RANK + 1, 2, dtype=dtype)
        dist.all_reduce(tensor)
        same(tensor, 10, 8)
    tensor = tpu(RANK + 1, dtype=torch.bfloat16)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    same(tensor, 2.5)
    tensor = tpu(RANK + 1)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    same(tensor, 4)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    same(tensor, 16)
    strided = torch.zeros(2, 3, device="tpu").t()
    strided += RANK
    dist.all_reduce(strided)
    same(strided, *[6] * 6)
    cpu = torch.tensor([RANK])
    dist.all_reduce(cpu)
    same(cpu, 6)


def test_reduce() -> None:
    tensor = tpu(RANK)
    dist.reduce(tensor, dst=1)
    same(tensor, 6 if RANK == 1 else RANK)


def test_reduce_scatter() -> None:
    output = tpu(0)
    dist.reduce_scatter_tensor(output, tpu(*[RANK + i for i in ALL]))
    same(output, 6 + 4 * RANK)
    dist.reduce_scatter_tensor(output, tpu(*[RANK + i for i in ALL]), op=dist.ReduceOp.AVG)
    same(output, 1.5 + RANK)
    parts = [torch.full((i + 1,), float(RANK), device="tpu") for i in ALL]
    output = torch.empty(RANK + 1, device="tpu")
    dist.reduce_scatter(output, parts)
    same(output, *[6] * (RANK + 1))


def test_broadcast() -> None:
    for tensor in (tpu(RANK), tpu(RANK == 2, dtype=torch.bool), torch.tensor(RANK, device="tpu")):
        dist.broadcast(tensor, src=2)
        same(tensor, tensor.dtype == torch.bool or 2)


def test_gathers() -> None:
    parts = [tpu(0) for _ in ALL]
    dist.all_gather(parts, tpu(RANK))
    same(torch.cat(parts), *ALL)
    output = torch.empty(WORLD, 2, device="tpu")
    dist.all_gather_into_tensor(output, tpu(RANK, -RANK))
    same(output, 0, 0, 1, -1, 2, -2, 3, -3)
    dist.gather(tpu(RANK * 2), parts if RANK == 3 else None, dst=3)
    same(torch.cat(parts), *(range(0, 8, 2) if RANK == 3 else ALL))
    tensor = tpu(0)
    dist.scatter(tensor, [tpu(i * i) for i in ALL] if RANK == 1 else None, src=1)
    same(tensor, RANK * RANK)


def test_all_to_all() -> None:
    output = tpu(*[0] * WORLD)
    dist.all_to_all_single(output, tpu(*[10 * RANK + i for i in ALL]))
    same(output, *[10 * i + RANK for i in ALL])
    rows = [i + 1 for i in ALL]
    output = torch.empty(WORLD * (RANK + 1), 2, device="tpu")
    source = torch.full((sum(rows), 2), float(RANK), device="tpu")
    dist.all_to_all_single(output, source, [RANK + 1] * WORLD, rows)
    same(output, *[i for i in ALL for _ in range(2 * (RANK + 1))])
    parts = [tpu(0) for _ in ALL]
    dist.all_to_all(parts, [tpu(10 * RANK + i) for i in ALL])
    same(torch.cat(parts), *[10 * i + RANK for i in ALL])


def test_messages() -> None:
    left, right = (RANK - 1) % WORLD, (RANK + 1) % WORLD
    received = tpu(-1)
    for work in (dist.isend(tpu(RANK), right), dist.irecv(received, left)):
        work.wait()
    same(received, left)
    pair = [dist.P2POp(dist.isend, tpu(RANK), left), dist.P2POp(dist.irecv, received, right)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    same(received, right)
    if RANK == 0:
        senders = sorted(dist.recv(received) for _ in range(WORLD - 1))
        assert senders == [1, 2, 3], senders
    else:
        dist.send(tpu(RANK), 0)
    dist.barrier()


def test_objects() -> None:
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": RANK})
    assert [each["rank"] for each in gathered] == list(ALL)
    shared = ["from 1" if RANK == 1 else None]
    dist.broadcast_object_list(shared, src=1)
    assert shared == ["from 1"]


def test_groups() -> None:
    pair = dist.new_group([1, 3])
    if RANK in {1, 3}:
        tensor = tpu(RANK)
        dist.all_reduce(tensor, group=pair)
        same(tensor, 4)
    mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("hosts", "chips"))
    for name, expected in (("hosts", 2 * (RANK % 2) + 2), ("chips", 1 if RANK < 2 else 5)):
        tensor = tpu(RANK)
        dist.all_reduce(tensor, group=mesh[name].get_group())
        same(tensor, expected)


def test_functional() -> None:
    same(functional.all_reduce(tpu(RANK), "sum", list(ALL)), 6)
    same(functional.all_gather_tensor(tpu(RANK), 0, list(ALL)), *ALL)
    same(functional.reduce_scatter_tensor(tpu(*ALL), "sum", 0, list(ALL)), 4 * RANK)
    many = functional.all_reduce_coalesced([tpu(RANK), tpu(1)], "sum", list(ALL))
    same(torch.cat([each.cpu() for each in many]), 6, 4)


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        dist.barrier()
print(f"rank {RANK}: all collectives are right", flush=True)
dist.destroy_process_group()
