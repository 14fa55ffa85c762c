"""The process group of emulated TPUs: tensors go to the CPU, through gloo, and back.

torch takes a subclass of ProcessGroup for the whole group, where it else asks a backend for each device: CPU
tensors come here too, and go to gloo as they are. What only moves data moves bytes, whatever the dtype.

All but send and receive have ended when they return; `async_op=True` gets work that is done. Ranks call the
collectives of a group in the same order, so nobody can tell but by the clock.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
from torch._C import _distributed_c10d as c10d

Tensor = Any
Work = Any


def create(store: Any, rank: int, size: int, timeout: Any) -> StagedGroup:
    """What torch.distributed calls for backends `tpu_dist` and `tpu`."""
    return StagedGroup(store, rank, size, timeout)


def _staged(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, contiguous: a copy, or a CPU tensor itself."""
    return tensor.detach().cpu().contiguous()


def _bytes(tensor: Tensor) -> Tensor:
    return _staged(tensor).reshape(-1).view(torch.uint8)


def _size(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _room(tensor: Tensor) -> Tensor:
    """Bytes to receive a tensor in."""
    return torch.empty(_size(tensor), dtype=torch.uint8)


def _take(tensor: Tensor, content: Tensor) -> None:
    """Give a tensor its content, which may be bytes."""
    if content.dtype == torch.uint8 != tensor.dtype:
        content = content.view(tensor.dtype)
    tensor.detach().copy_(content.reshape(tensor.shape))


def _done(result: Any) -> Work:
    future = torch.futures.Future()
    future.set_result(result)
    return c10d._create_work_from_future(future)


def _options(kind: Any, given: Any, *names: str) -> Any:
    """Options for gloo, with a time limit and what is named as in those that were given."""
    options = kind()
    for name in ("timeout", *names):
        if hasattr(given, name):
            setattr(options, name, getattr(given, name))
    return options


class _Transfer(c10d.Work):  # type: ignore[misc]
    """A message on its way: pairs of ranks may each send before they receive."""

    def __init__(self, work: Work, content: Tensor, arrive: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._content = content  # gloo's for as long as it works
        self._arrive: Optional[Callable[[], None]] = arrive

    def wait(self, *timeout: Any) -> bool:
        if self._arrive is not None:
            self._work.wait(*timeout)
            self._arrive()
            self._arrive = None
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return self._arrive is None or (bool(self._work.is_completed()) and self.wait())

    def get_future(self) -> Any:
        self.wait()
        future = torch.futures.Future()
        future.set_result([self._content])
        return future

    def _source_rank(self) -> int:
        return int(self._work._source_rank())


class StagedGroup(c10d.ProcessGroup):  # type: ignore[misc]
    """A group of ranks with one emulated device each."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = c10d.ProcessGroupGloo(store, rank, size, timeout)
        self._rank, self._size = rank, size
        self._name = self._description = ""

    # --- what torch asks of a group, by the names that it has for it

    def getBackendName(self) -> str:
        return "tpu_dist"

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    # --- reductions

    def _reduce(self, flat: Tensor, opts: Any) -> Tensor:
        """Reduce a CPU tensor over all ranks, in place."""
        options = _options(c10d.AllreduceOptions, opts)
        operation = getattr(opts, "reduceOp", c10d.ReduceOp.SUM)
        average = operation == c10d.ReduceOp.AVG
        options.reduceOp = c10d.ReduceOp.SUM if average else operation
        self._gloo.allreduce([flat], options).wait()
        return flat.div_(self._size) if average else flat

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        for tensor in tensors:
            _take(tensor, self._reduce(_staged(tensor), opts))
        return _done(tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        for tensor in tensors:
            reduced = self._reduce(_staged(tensor).clone(), opts)
            if self._rank == opts.rootRank:
                _take(tensor, reduced)
        return _done(tensors)

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Work:
        for output, parts in zip(outputs, inputs, strict=True):
            flat = torch.cat([_staged(part).reshape(-1) for part in parts])
            reduced = self._reduce(flat, opts).split([part.numel() for part in parts])
            _take(output, reduced[self._rank])
        return _done(outputs)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        reduced = self._reduce(_staged(source).clone().reshape(-1), opts)
        _take(output, reduced.reshape(self._size, -1)[self._rank])
        return _done([output])

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        for output, source in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, source, opts)
        return _done(outputs)

    # --- moves

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        options = _options(c10d.BroadcastOptions, opts, "rootRank")
        for tensor in tensors:
            content = _bytes(tensor)
            self._gloo.broadcast([content], options).wait()
            _take(tensor, content)
        return _done(tensors)

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        for parts, source in zip(outputs, inputs, strict=True):
            rooms = [_room(part) for part in parts]
            self._gather(rooms, source, opts)
            for part, room in zip(parts, rooms, strict=True):
                _take(part, room)
        return _done(outputs)

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        room = _room(output)
        self._gather(list(room.reshape(self._size, -1)), source, opts)
        _take(output, room)
        return _done([output])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        for output, source in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, source, opts)
        return _done(outputs)

    def _gather(self, rooms: Sequence[Tensor], source: Tensor, opts: Any) -> None:
        options = _options(c10d.AllgatherOptions, opts)
        self._gloo.allgather([rooms], [_bytes(source)], options).wait()

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        options = _options(c10d.GatherOptions, opts, "rootRank")
        rooms = [[_room(part) for part in parts] for parts in outputs]
        self._gloo.gather(rooms, [_bytes(source) for source in inputs], options).wait()
        for parts, received in zip(outputs, rooms, strict=True):
            for part, room in zip(parts, received, strict=True):
                _take(part, room)
        return _done(outputs)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        options = _options(c10d.ScatterOptions, opts, "rootRank")
        rooms = [_room(output) for output in outputs]
        self._gloo.scatter(rooms, [[_bytes(part) for part in parts] for parts in inputs], options).wait()
        for output, room in zip(outputs, rooms, strict=True):
            _take(output, room)
        return _done(outputs)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        rooms = self._exchange(
            torch.cat([_bytes(source) for source in inputs]),
            [_size(source) for source in inputs],
            [_size(output) for output in outputs],
            opts,
        )
        for output, room in zip(outputs, rooms, strict=True):
            _take(output, room)
        return _done(outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_rows: Sequence[int],
        input_rows: Sequence[int],
        opts: Any = None,
    ) -> Work:
        sent, received = self._row_bytes(source, input_rows), self._row_bytes(output, output_rows)
        _take(output, torch.cat(self._exchange(_bytes(source), sent, received, opts)))
        return _done([output])

    def _row_bytes(self, tensor: Tensor, rows: Sequence[int]) -> list[int]:
        """Bytes for each rank; without numbers of rows, all get the same."""
        if not rows:
            return [_size(tensor) // self._size] * self._size
        per_row = _size(tensor) // max(tensor.shape[0], 1)
        return [count * per_row for count in rows]

    def _exchange(self, content: Tensor, sent: Sequence[int], received: Sequence[int], opts: Any) -> Any:
        room = torch.empty(sum(received), dtype=torch.uint8)
        options = _options(c10d.AllToAllOptions, opts)
        self._gloo.alltoall_base(room, content, list(received), list(sent), options).wait()
        return room.split(list(received))

    def barrier(self, opts: Any = None) -> Work:
        self._gloo.barrier(_options(c10d.BarrierOptions, opts)).wait()
        return _done([])

    # --- messages

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int) -> Work:
        content = _bytes(tensors[0])
        return _Transfer(self._gloo.send([content], rank, tag), content, lambda: None)

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int) -> Work:
        room = _room(tensors[0])
        return _Transfer(self._gloo.recv([room], rank, tag), room, lambda: _take(tensors[0], room))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> Work:
        room = _room(tensors[0])
        return _Transfer(self._gloo.recv_anysource([room], tag), room, lambda: _take(tensors[0], room))

    # --- several collectives as one: they have ended by then

    def _start_coalescing(self, _device: Any) -> None:
        pass

    def _end_coalescing(self, _device: Any) -> Work:
        return _done([])

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # The names up to torch 2.13, of which it still uses some.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
