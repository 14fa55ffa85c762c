"""Where a cluster keeps what it has: names and paths, and the record of what `up` was asked for."""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "dev"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")


class DevClusterError(Exception):
    """What went wrong and what a person can do about it, in a few lines."""


@dataclass(frozen=True)
class Layout:
    """Every name and path of one cluster, from its name and the checkout it belongs to.

    Nothing here needs the cluster to exist, so that `down` can clean up after anything.
    """

    name: str
    checkout: Path = CHECKOUT

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise DevClusterError(
                f"cluster name {self.name!r}: use at most 30 lower-case letters, digits and dashes, "
                "starting and ending with a letter or digit"
            )
        if self.name == "kubeconfig":
            raise DevClusterError("cluster name 'kubeconfig' is taken by the kubeconfig file of 'dev'")

    @property
    def id(self) -> str:
        """Name that is unique on this machine: two checkouts may both have a cluster named dev."""
        return f"{self.name}-{hashlib.sha256(bytes(self.checkout)).hexdigest()[:6]}"

    @property
    def home(self) -> Path:
        """Directory of all clusters of this checkout."""
        return self.checkout / ".devcluster"

    @property
    def dir(self) -> Path:
        """Directory of this cluster: all of its files."""
        return self.home / self.name

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator, for use from the host."""
        return (self.home if self.name == DEFAULT_NAME else self.dir) / "kubeconfig"

    @property
    def netns(self) -> str:
        """Name of the network namespace that the cluster lives in."""
        return f"tpu-{self.id}"

    @property
    def cgroup(self) -> str:
        """Path, below every cgroup mount, of the cgroup that holds all processes of the cluster."""
        return f"tpu-devcluster/{self.id}"

    @property
    def record(self) -> Path:
        """File with the `Record` of the cluster."""
        return self.dir / "cluster.json"

    @property
    def pids(self) -> Path:
        """Directory with one pid file a component."""
        return self.dir / "pids"

    @property
    def logs(self) -> Path:
        """Directory with one log file a component."""
        return self.dir / "logs"

    @property
    def audit_log(self) -> Path:
        """Audit log of the API server, one JSON object a line."""
        return self.logs / "audit.log"

    @property
    def config(self) -> Path:
        """Directory of credentials and of the configuration of what runs on the host."""
        return self.dir / "config"

    def log(self, component: str) -> Path:
        """Log file of a component."""
        return self.logs / f"{component}.log"

    def credentials(self, user: str) -> Path:
        """Kubeconfig of one of the cluster's own components."""
        return self.config / f"{user}.kubeconfig"

    def node(self, index: int) -> Path:
        """Directory with the private /run, /var/lib and /var/log of a node."""
        return self.dir / "nodes" / str(index)


@dataclass(frozen=True)
class Shape:
    """What a cluster consists of."""

    nodes: int = 4
    """Number of real nodes."""
    fake_nodes: int = 0
    """Number of kwok nodes."""
    api_qps: int | None = None
    """Requests a second that controller manager and scheduler may send; None leaves their defaults."""

    def __post_init__(self) -> None:
        if self.nodes < 0 or self.fake_nodes < 0:
            raise DevClusterError("the number of nodes cannot be negative")

    def __str__(self) -> str:
        rate = f" and {self.api_qps} requests a second" if self.api_qps else ""
        return f"{self.nodes} nodes, {self.fake_nodes} fake nodes{rate}"


@dataclass(frozen=True)
class Record:
    """What was made for a cluster, kept for every later command."""

    shape: Shape
    host_ip: str
    """Address of the host on the link to the cluster's namespace."""
    server_ip: str
    """Address of the cluster on that link."""

    @property
    def server(self) -> str:
        """URL of the API server: the same from the host, from nodes and from pods."""
        return f"https://{self.server_ip}:6443"

    def save(self, path: Path) -> None:
        """Write the record."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Record":
        """Read a record that `save` wrote."""
        content = json.loads(path.read_text())
        return cls(**{**content, "shape": Shape(**content["shape"])})
