"""Directories of nodes, which no field of ours opens to pods unless the administrator allows it.

Volumes of a user's own template are not looked at: those are for the Pod Security level of the namespace,
which knows all the ways in which a pod can get at its node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.settings import PodSettings


def refused(base: Manifest, settings: PodSettings, program: str) -> Iterator[str]:
    """Why a pod may not be made, for each directory of its node.

    Args:
        base: the pod without the user's template.
        settings: the installation's choices.
        program: the field that says what runs in it, `spec.run` or `spec.engine`.
    """
    if settings.allow_host_path_caches:
        return
    fields = {
        "compile-cache": (f"{program}.compileCache", "persistentVolumeClaim or uri"),
        "weights": ("spec.model.cache", "persistentVolumeClaim"),
    }
    for volume in base["spec"]["volumes"]:
        if directory := volume.get("hostPath"):
            field, others = fields[volume["name"]]
            yield (
                f"{field}.hostPath is {directory['path']!r}, and this installation opens no directories of "
                f"nodes: use {others}, or have the chart's value allowHostPathCaches set"
            )
