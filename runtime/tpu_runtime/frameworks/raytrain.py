"""What Ray Train calls (RAY_TRAIN_CALLBACKS); it runs in Ray's controller of a training."""

from __future__ import annotations

from typing import Any

from ray.train.v2._internal.execution.callback import WorkerGroupCallback

from tpu_runtime.frameworks.rayranks import by_rank, own_seat, use


class AddressesByRank(WorkerGroupCallback):  # type: ignore[misc]
    """Gives workers with TPUs the addresses of their slice in the order of their ranks."""

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Set the variable in all workers, before Ray Train has them make their process group."""
        if not worker_group.get_resources_per_worker().get("TPU"):
            return
        seats = worker_group.execute(own_seat)
        if None not in seats:
            worker_group.execute(use, by_rank(seats))
