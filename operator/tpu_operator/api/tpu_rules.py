"""CEL about accelerators, topologies and hosts, generated from the catalog.

The rules repeat `catalog.resolve` for the API server; a test holds the two together. The functions take
the CEL expression of an object that has the fields `accelerator`, `topology` and `chipsPerHost`.
"""

from math import prod

from tpu_operator.api.extensions import Rule, rule, strings
from tpu_operator.catalog import (
    CUBE,
    GENERATIONS,
    MAX_DIMENSION,
    MAX_HOSTS,
    MULTI_HOST_CHIPS,
    Generation,
    expected_topology,
)

_TOPOLOGY = "^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}$"
_KNOWN = strings(name for generation in GENERATIONS for name in generation.names)
_SINGLE_HOST = strings(dict.fromkeys(t for generation in GENERATIONS for t in generation.single_host))
_SHORT_NAMES = ", ".join(generation.name for generation in GENERATIONS)


def well_formed(tpu: str) -> str:
    """CEL: the topology can be computed with."""
    return f"{tpu}.topology.matches('{_TOPOLOGY}')"


def computable(tpu: str) -> str:
    """CEL: the hosts can be computed; chipsPerHost below 1 has an error of its own already."""
    return f"({well_formed(tpu)} && (!has({tpu}.chipsPerHost) || {tpu}.chipsPerHost > 0))"


def chips(tpu: str) -> str:
    """CEL: the chips of a slice."""
    # A list of one element is CEL's way to name an intermediate value.
    return f"[{tpu}.topology.split('x').map(n, int(n))].map(d, d[0] * d[1] * (d.size() > 2 ? d[2] : 1))[0]"


def chips_per_host(tpu: str) -> str:
    """CEL: the chips of a host, whether given or following from the topology."""
    return (
        f"(has({tpu}.chipsPerHost) ? {tpu}.chipsPerHost : "
        f"{tpu}.topology in {_SINGLE_HOST} ? {chips(tpu)} : {MULTI_HOST_CHIPS})"
    )


def known(tpu: str) -> str:
    """CEL: the accelerator is in the catalog."""
    return f"{tpu}.accelerator in {_KNOWN}"


def devices_per_chip(tpu: str) -> str:
    """CEL: the devices that frameworks see on a chip; the accelerator must be known."""
    table = ", ".join(f"'{name}': {g.devices_per_chip}" for g in GENERATIONS for name in g.names)
    return f"{{{table}}}[{tpu}.accelerator]"


def topology_form() -> Rule:
    """Return the rule of a topology by itself."""
    return rule(
        f"self.matches('{_TOPOLOGY}')",
        "must be the chips in each dimension, such as 4x4 (v5e, v6e) or 2x2x4 (v4, v5p, tpu7x)",
    )


def slice_rules() -> list[Rule]:
    """Return the rules of an object that asks for one slice, whose CEL expression is `self`."""
    large_single_hosts = sorted(
        {t for g in GENERATIONS for t in g.single_host if _chips(t) > MULTI_HOST_CHIPS}
    )
    return [
        _accelerator_known(),
        *map(_offered, GENERATIONS),
        *map(_unambiguous, large_single_hosts),
        _fits(),
        _divides(),
    ]


def tpu_rules() -> list[Rule]:
    """Return the rules of an object that asks for slices, and says how many."""
    return [*slice_rules(), _few_enough()]


def _accelerator_known() -> Rule:
    return rule(
        f"{known('self')} || has(self.chipsPerHost)",
        f"%s is unknown: write one of {_SHORT_NAMES} or their GKE label values, "
        "or set chipsPerHost to the chips of one node",
        values=["strings.quote(self.accelerator)"],
        path=".accelerator",
    )


def _offered(generation: Generation) -> Rule:
    named = f"self.topology in {strings(generation.topologies)}"
    cubes = (
        "[self.topology.split('x').map(n, int(n))].all(d, d.size() == 3"
        f" && d[0] <= d[1] && d[1] <= d[2] && d[2] <= {MAX_DIMENSION} && d.all(n, n % {CUBE} == 0)"
        f" && d[0] * d[1] * d[2] <= {generation.max_chips})"
    )
    return rule(
        f"!({well_formed('self')} && self.accelerator in {strings(generation.names)}) || {named}"
        + (f" || {cubes}" if generation.max_cubes else ""),
        f"'%s' does not exist on {generation.name}: write {expected_topology(generation)}",
        values=["self.topology"],
        path=".topology",
    )


def _unambiguous(topology: str) -> Rule:
    """Demand chipsPerHost for a topology that exists both as one machine and as several."""
    names = strings(name for g in GENERATIONS if topology in g.single_host for name in g.names)
    total, hosts = _chips(topology), _chips(topology) // MULTI_HOST_CHIPS
    return rule(
        f"has(self.chipsPerHost) || self.topology != '{topology}' || !(self.accelerator in {names})",
        f"{topology} is 1 host of {total} chips or {hosts} hosts of {MULTI_HOST_CHIPS}: "
        f"write {total} or {MULTI_HOST_CHIPS}",
        path=".chipsPerHost",
        reason="FieldValueRequired",
    )


def _chips(topology: str) -> int:
    return prod(map(int, topology.split("x")))


def _fits() -> Rule:
    """Accept for a known accelerator only the chips per host of machines that make up the topology."""
    single = f"self.topology in {_SINGLE_HOST}"
    total = chips("self")
    several = f"{total} > {MULTI_HOST_CHIPS}"
    return rule(
        f"!(has(self.chipsPerHost) && {well_formed('self')} && {known('self')})"
        f" || ({single} && self.chipsPerHost == {total})"
        f" || (self.chipsPerHost == {MULTI_HOST_CHIPS} && {several})",
        "%d does not fit %s on %s: write %d%s",
        values=[
            "self.chipsPerHost",
            "self.topology",
            "self.accelerator",
            f"{single} ? {total} : {MULTI_HOST_CHIPS}",
            f"{single} && {several} ? ' or {MULTI_HOST_CHIPS}' : ''",
        ],
        path=".chipsPerHost",
    )


def _divides() -> Rule:
    """Check the division into hosts where the catalog knows no machines."""
    return rule(
        f"!(has(self.chipsPerHost) && {computable('self')}) || {known('self')}"
        f" || {chips('self')} % self.chipsPerHost == 0",
        "%d does not divide the %d chips of %s into hosts: write the chips of one node",
        values=["self.chipsPerHost", chips("self"), "self.topology"],
        path=".chipsPerHost",
    )


def _few_enough() -> Rule:
    """Limit the hosts of all slices: the operator keeps each of them in mind."""
    hosts = f"{chips('self')} / {chips_per_host('self')}"
    slices = "((has(self.slices) ? self.slices : 1) + (has(self.spareSlices) ? self.spareSlices : 0))"
    return rule(
        f"!{computable('self')} || {hosts} * {slices} <= {MAX_HOSTS}",
        f"%s times %d slices is %d hosts: a job may have {MAX_HOSTS} at most",
        values=["self.topology", slices, f"{hosts} * {slices}"],
        path=".topology",
    )
