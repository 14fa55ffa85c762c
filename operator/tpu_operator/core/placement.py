"""Which node pool each slice goes to, decided before its pods are made.

A slice works only inside one node pool, whose chips are wired to each other. Choosing the pool here costs
one node selector. Leaving it to the scheduler costs affinity between all pods, by which it places a fifth
of the pods in the same time (facts of JobSet's issue 174); that is done only where no pool is free, so that
the autoscaler makes one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tpu_operator.core import names
from tpu_operator.core.notices import notice_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence
    from datetime import datetime

    from tpu_operator.core.plan import Manifest
    from tpu_operator.core.snapshot import Node, Pod, Taint

Key = tuple[str, str]
"""Namespace and name."""
Shape = tuple[str | None, ...]


class Tenant(NamedTuple):
    """A slice that holds a pool, or a head on one of its nodes.

    Attributes:
        slice_id: value of the label of its pods; empty for a head.
        job: namespace and name of its job, for people.
    """

    slice_id: str
    job: str


@dataclass(frozen=True, slots=True)
class Demand:
    """What the slices of a job need of a pool.

    Attributes:
        selector: labels of its nodes.
        tolerations: of the pods.
        hosts: nodes for each slice.
        chips: chips of each node.
        shared: whether slices may share a pool.
    """

    selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, Any]]
    hosts: int
    chips: int
    shared: bool = False

    def wants(self, node: Node) -> bool:
        """Whether a node is of the kind, by its labels."""
        return self.selector.items() <= node.metadata.labels.items()

    def fault(self, node: Node) -> str:
        """What keeps pods off a node of the kind, as the rest of a sentence; empty if nothing does."""
        if node.ready.status != "True":
            return "is not ready"
        if node.spec.unschedulable:
            return "is cordoned"
        if node.chips < self.chips:
            return f"offers {node.chips} chips of {self.chips}"
        taint = next((t for t in node.spec.taints if not _tolerated(t, self.tolerations)), None)
        return f"has the taint {taint.key}" if taint else ""


class Pools:
    """Node pools with TPUs and their tenants, kept up to date object by object."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, Node]] = {}
        self._pool_of: dict[str, str] = {}
        self._shapes: defaultdict[Shape, dict[str, None]] = defaultdict(dict)
        self._seats: dict[Key, tuple[str, str, Tenant]] = {}
        self._on_node: defaultdict[str, Counter[Tenant]] = defaultdict(Counter)
        self._tenants: defaultdict[str, Counter[Tenant]] = defaultdict(Counter)
        self._claims: dict[tuple[str, ...], Mapping[str, Tenant]] = {}
        self._claimed: defaultdict[str, Counter[Tenant]] = defaultdict(Counter)
        self._strangers: dict[Key, str] = {}
        self._taken: defaultdict[str, dict[Key, int]] = defaultdict(dict)

    def put_node(self, node: Node) -> None:
        """Take a node in, or what has become of it."""
        name = node.metadata.name
        if self._pool_of.get(name, "") != node.pool:
            self.drop_node(name)
        if not node.pool:
            return
        if name not in self._pool_of:
            self._pool_of[name] = node.pool
            self._tenants[node.pool].update(_slices(self._on_node.get(name)))
        self._nodes.setdefault(node.pool, {})[name] = node
        self._shapes[_shape(node.metadata.labels)][node.pool] = None

    def drop_node(self, name: str) -> None:
        """Forget a node."""
        pool = self._pool_of.pop(name, "")
        if not pool:
            return
        _take(self._tenants, pool, _slices(self._on_node.get(name)))
        del self._nodes[pool][name]
        if not self._nodes[pool]:
            del self._nodes[pool]
            for pools in self._shapes.values():
                pools.pop(pool, None)

    def put_pod(self, pod: Pod) -> None:
        """Take a pod in, or what has become of it: it holds its node until it has finished or is gone."""
        meta = pod.metadata
        key = (meta.namespace, meta.name)
        if pod.finished:
            self.drop_pod(key)
            return
        # Anybody can write labels: a pod that takes no chips must not keep slices out of a pool.
        slice_id = meta.labels.get(names.LABEL_SLICE_ID, "") if pod.chips else ""
        tenant = Tenant(slice_id, f"{meta.namespace}/{_owner(meta.labels)}")
        seat = (pod.spec.node_name, pod.spec.node_selector.pool, tenant)
        if self._seats.get(key) == seat:
            return
        self.drop_pod(key)
        self._seats[key] = seat
        node, pinned, _ = seat
        if node:
            self._on_node[node][tenant] += 1
        pool = self._pool_of.get(node, "") if node else pinned
        if pool and tenant.slice_id:
            self._tenants[pool][tenant] += 1

    def drop_pod(self, key: Key) -> None:
        """Forget a pod."""
        seat = self._seats.pop(key, None)
        if seat is None:
            return
        node, pinned, tenant = seat
        if node:
            _take(self._on_node, node, Counter([tenant]))
        pool = self._pool_of.get(node, "") if node else pinned
        if pool and tenant.slice_id:
            _take(self._tenants, pool, Counter([tenant]))

    def put_stranger(self, pod: Pod) -> None:
        """Take in a pod that is none of ours: it holds its chips until it has finished or is gone."""
        key, node = (pod.metadata.namespace, pod.metadata.name), pod.spec.node_name
        self.drop_stranger(key)
        if node and pod.chips and not pod.finished:
            self._strangers[key] = node
            self._taken[node][key] = pod.chips

    def drop_stranger(self, key: Key) -> None:
        """Forget a pod that was none of ours."""
        node = self._strangers.pop(key, "")
        if node:
            del self._taken[node][key]
            if not self._taken[node]:
                del self._taken[node]

    def claim(self, owner: tuple[str, ...], pools: Mapping[str, Tenant]) -> None:
        """Hold these pools, and no others, for pods that an object is about to get."""
        for pool, tenant in self._claims.pop(owner, {}).items():
            _take(self._claimed, pool, Counter([tenant]))
        if pools:
            self._claims[owner] = pools
            for pool, tenant in pools.items():
                self._claimed[pool][tenant] += 1

    def of(self, selector: Mapping[str, str]) -> Iterable[str]:
        """Pools whose accelerator, topology and chips a selector names."""
        return self._shapes.get(_shape(selector), {})

    def nodes(self, pool: str) -> Iterable[Node]:
        """Nodes of a pool."""
        return self._nodes.get(pool, {}).values()

    def tenants(self, pool: str) -> set[Tenant]:
        """Slices that hold a pool, or are about to."""
        return {*self._tenants.get(pool, ()), *self._claimed.get(pool, ())}

    def tenants_on(self, node: str) -> set[Tenant]:
        """Slices, and heads, with a pod on a node."""
        return {*self._on_node.get(node, ())}

    def fault(self, node: Node, demand: Demand) -> str:
        """What keeps pods off a node of the kind, as the rest of a sentence; empty if slices alone may."""
        taken = self._taken.get(node.metadata.name, {})
        if (fault := demand.fault(node)) or node.chips - sum(taken.values()) >= demand.chips:
            return fault
        return f"is used by pod {'/'.join(min(taken))}"

    def usable(self, pool: str, demand: Demand) -> list[Node]:
        """Nodes of a pool to which pods could go if no slice were on them."""
        return [node for node in self.nodes(pool) if demand.wants(node) and not self.fault(node, demand)]

    def fits(self, pool: str, demand: Demand, slice_id: str) -> bool:
        """Whether a pool has room for a slice, and no other slice is in it."""
        if any(tenant.slice_id != slice_id for tenant in self.tenants(pool)):
            return False
        return len(self.usable(pool, demand)) >= demand.hosts


def choose(
    pools: Pools,
    demand: Demand,
    slices: Mapping[str, str | None],
    shunned: Callable[[str], bool] = lambda _: False,
    *,
    strict: bool = False,
    kept: Container[str] = (),
) -> dict[str, str]:
    """A pool for each slice that there is one for.

    Args:
        pools: the pools.
        demand: what each slice needs.
        slices: by slice ID, the pool that the slice was in last, where it stays if it can.
        shunned: whether to take a pool only where there is no other.
        strict: not even then.
        kept: pools that are for others.
    """
    found: dict[str, str] = {}
    shuns = cache(shunned)
    for last_resort in (False,) if strict else (False, True):
        taken = set(found.values())
        for slice_id, home in slices.items():
            if not home or slice_id in found or home in taken or (shuns(home) and not last_resort):
                continue
            if pools.fits(home, demand, slice_id):
                found[slice_id] = home
                taken.add(home)
        if left := [slice_id for slice_id in slices if slice_id not in found]:
            usable = (p for p in pools.of(demand.selector) if p not in kept and p not in taken)
            among = (p for p in usable if last_resort or not shuns(p))
            found |= _hand_out(left, pools, among, demand)
    return found


def _hand_out(slices: Iterable[str], pools: Pools, among: Iterable[str], demand: Demand) -> dict[str, str]:
    """For each slice the first pool with room that nobody else is in.

    Each pool is looked at once at most, however many slices there are: both can be a thousand.
    """
    found: dict[str, str] = {}
    left = dict.fromkeys(slices)
    for pool in among:
        holders = {tenant.slice_id for tenant in pools.tenants(pool)}
        if len(holders) > 1:
            continue
        slice_id = next(iter(holders or left))
        if slice_id in left and len(pools.usable(pool, demand)) >= demand.hosts:
            found[slice_id] = pool
            del left[slice_id]
            if not left:
                break
    return found


def claims(job: str, creates: Iterable[Manifest], reserved: Mapping[str, str]) -> dict[str, Tenant]:
    """Node pools that a job holds beside those that its pods are in.

    Args:
        job: its namespace and name.
        creates: pods that are made now.
        reserved: pools that are kept for slices, with their IDs, unless these get pods now.
    """
    made: dict[str, str] = {}
    for manifest in creates:
        if slice_id := manifest["metadata"]["labels"].get(names.LABEL_SLICE_ID):
            made[slice_id] = manifest.get("spec", {}).get("nodeSelector", {}).get(names.NODE_POOL, "")
    kept = [(slice_id, pool) for pool, slice_id in reserved.items() if slice_id not in made]
    return {pool: Tenant(slice_id, job) for slice_id, pool in [*kept, *made.items()] if pool}


def shunned(pools: Pools, now: datetime, ahead: float) -> Callable[[str], bool]:
    """Tells pools with maintenance ahead from others; `ahead` as for `notices.notice_of`."""

    def told(pool: str) -> bool:
        return any(notice_of(node, now, ahead) for node in pools.nodes(pool))

    return told


def _owner(labels: Mapping[str, str]) -> str:
    """Name of the object that a pod belongs to."""
    return labels.get(names.LABEL_JOB) or labels.get(names.LABEL_INFERENCE, "")


def _shape(labels: Mapping[str, str]) -> Shape:
    return tuple(labels.get(key) for key in (names.NODE_ACCELERATOR, names.NODE_TOPOLOGY, names.NODE_CHIPS))


def _slices(tenants: Counter[Tenant] | None) -> Counter[Tenant]:
    """Without heads, which hold no chips."""
    return Counter({tenant: count for tenant, count in (tenants or {}).items() if tenant.slice_id})


def _take(counters: dict[str, Counter[Tenant]], key: str, less: Counter[Tenant]) -> None:
    """Subtract, keeping neither zeros nor empty counters."""
    left = counters.get(key, Counter()) - less
    if left:
        counters[key] = left
    else:
        counters.pop(key, None)


def _tolerated(taint: Taint, tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a taint lets a pod with these tolerations in, as Kubernetes defines it."""
    return taint.effect == "PreferNoSchedule" or any(_matches(taint, one) for one in tolerations)


def _matches(taint: Taint, toleration: Mapping[str, Any]) -> bool:
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if toleration.get("effect") not in {None, "", taint.effect} or key not in {"", taint.key}:
        return False
    if operator == "Exists":
        return True
    return operator == "Equal" and bool(key) and (toleration.get("value") or "") == taint.value
