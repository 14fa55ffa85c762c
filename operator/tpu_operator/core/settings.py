"""What the administrator decides for all pods, as opposed to what a job asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Installation-wide choices that end up in pods."""

    runtime_image: str
    """Image of pods whose job names none; it carries `tpu-launch`."""

    launcher_image: str
    """Image from which an init container copies the launcher into images that are not ours."""

    emulate: str = ""
    """`cpu` where the cluster has no TPUs: the launcher then runs frameworks on the CPU."""

    inject_topology_env: bool = False
    """Compute the variables that GKE's device plugin sets, for clusters without it."""

    allow_host_path_caches: bool = False
    """Whether caches may be directories of nodes: whoever may create an object reads and writes these."""
