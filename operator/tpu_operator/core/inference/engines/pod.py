"""What an engine asks of the pod that it runs in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_operator.api import Launcher
from tpu_operator.core import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_operator.api import EngineSpec, RoleSpec, TPUInference
    from tpu_operator.catalog import SliceShape
    from tpu_operator.core.inference.images import Images
    from tpu_operator.core.plan import Manifest

EnvVar = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an engine runs: one host of one slice.

    Attributes:
        shape: the slice.
        host: index of the host in it.
        leader: DNS name of its host 0, at which the other hosts find the engine.
    """

    shape: SliceShape
    host: int
    leader: str

    @property
    def leads(self) -> bool:
        """Whether this host answers requests; the others only compute."""
        return self.host == 0

    @property
    def devices(self) -> int:
        """Devices of the whole slice."""
        return self.shape.hosts * self.shape.devices_per_host


@dataclass(frozen=True, slots=True)
class Task:
    """One host of one role: all that an adapter looks at.

    Attributes:
        inference: the whole object.
        role: one of its roles.
        seat: the host.
        images: those of the installation.
    """

    inference: TPUInference
    role: RoleSpec
    seat: Seat
    images: Images

    @property
    def engine(self) -> EngineSpec:
        """The engine's part of the spec."""
        return self.inference.spec.engine

    @property
    def image(self) -> str:
        """Image of the main container."""
        return self.engine.image or self.images.engine

    @property
    def user_args(self) -> list[str]:
        """Arguments of the spec: those of all roles, then those of this one."""
        return [*self.engine.args, *self.role.args]

    @property
    def user_env(self) -> list[EnvVar]:
        """Variables of the spec; a role's stand in for those of all roles, at their place."""
        variables = {variable.name: variable.wire() for variable in (*self.engine.env, *self.role.env)}
        return list(variables.values())


@dataclass(frozen=True, slots=True)
class EnginePod:
    """The main container of one host, and what its pod has for that container's sake.

    Attributes:
        image: image of the main container.
        command: what the launcher starts, with all arguments.
        env: variables of the container, the user's included, which win over the adapter's; the variables of
            contract A3 are laid under these.
        ports: ports of the container, those of its sidecars excluded.
        probes: `startupProbe`, `readinessProbe` and `livenessProbe`, as far as there are any.
        lifecycle: hooks of the container; None for none.
        volumes: volumes of the pod, beside /dev/shm and /tmp, which all TPU pods have.
        mounts: where they are in the main container.
        sidecars: containers that start before the engine and end after it.
        grace_seconds: how long the pod has to end, hooks included.
        template: the role's template as far as it is about this host.
        launcher: how the command is started: by itself on every host, or by Ray on host 0 alone.
        problems: what in the spec keeps this engine from being run, naming the field and what to write
            instead; where there are any, no pod must be made.
    """

    image: str
    command: tuple[str, ...]
    env: tuple[EnvVar, ...]
    ports: tuple[Manifest, ...]
    probes: Manifest
    lifecycle: Manifest | None
    volumes: tuple[Manifest, ...]
    mounts: tuple[Manifest, ...]
    sidecars: tuple[Manifest, ...]
    grace_seconds: int
    template: Mapping[str, Any] | None = None
    launcher: Launcher = Launcher.NONE
    problems: tuple[str, ...] = ()

    def overlay(self) -> Manifest:
        """All but the command, to be merged over the pod that every TPU host gets.

        The form is that of a user's template, which goes on top of it.
        """
        main: Manifest = {
            "name": names.MAIN_CONTAINER,
            "image": self.image,
            "env": list(self.env),
            "ports": list(self.ports),
            "volumeMounts": list(self.mounts),
            **self.probes,
        }
        if self.lifecycle:
            main["lifecycle"] = self.lifecycle
        spec: Manifest = {
            "containers": [main],
            "volumes": list(self.volumes),
            "terminationGracePeriodSeconds": self.grace_seconds,
        }
        if self.sidecars:
            spec["initContainers"] = list(self.sidecars)
        return {"spec": spec}
