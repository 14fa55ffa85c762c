"""`kubectl tpu doctor`: what is wrong with a cluster, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tpu_operator.api.crd import KINDS, definition
from tpu_operator.cli.checks import Facts, examine
from tpu_operator.cli.command import Call, Command, Exit, Parser, add_output, add_place
from tpu_operator.cli.findings import Finding, Severity
from tpu_operator.cli.server import connect
from tpu_operator.cli.text import Cell, Style, table
from tpu_operator.core import names
from tpu_operator.core.snapshot import Node, Quota
from tpu_operator.engine.resources import LEASES, NODES, QUOTAS, TPUJOBS, Resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpu_operator.cli.server import Server

Object = dict[str, Any]

CRDS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
RIGHTS: Final = (
    ("create TPUJobs", {"group": TPUJOBS.group, "resource": TPUJOBS.plural, "verb": "create"}),
    ("read logs", {"resource": "pods", "subresource": "log", "verb": "get"}),
    ("delete pods", {"resource": "pods", "verb": "delete"}),
)
"""What the commands need."""
COLOURS: Final = {
    Severity.OK: "green",
    Severity.NOTE: "blue",
    Severity.WARNING: "yellow",
    Severity.ERROR: "red",
}


def add(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--operator-namespace",
        default=names.FIELD_MANAGER,
        help="where the operator is installed (%(default)s)",
    )
    add_output(parser)
    add_place(parser)


async def run(call: Call) -> int:
    """Check the cluster; the exit code is 1 if there is an error."""
    async with connect(call.place) as server:
        facts = await read(server, call.options.operator_namespace)
    findings = examine(facts, call.clock())
    call.show(findings, lambda: draw(findings, call.terminal.style))
    return Exit.BAD if any(one.severity is Severity.ERROR for one in findings) else Exit.DONE


async def read(server: Server, operator: str) -> Facts:
    """All that is looked at."""
    crds = [definition(kind)["metadata"]["name"] for kind in KINDS]
    groups = await server.try_get("/apis") or {}
    return Facts(
        namespace=server.namespace,
        version=await server.try_get("/version") or {},
        crds={name: await server.try_get(CRDS.path(name=name)) for name in crds},
        served=await server.try_get(f"/apis/{TPUJOBS.group}/{TPUJOBS.version}") is not None,
        lease=await server.try_get(LEASES.path(operator, names.FIELD_MANAGER)),
        deployment=await server.try_get(DEPLOYMENTS.path(operator, names.FIELD_MANAGER)),
        nodes=await server.try_read(NODES, Node, everywhere=True, labelSelector=names.NODE_ACCELERATOR),
        quotas=await server.try_read(QUOTAS, Quota),
        groups=frozenset(group["name"] for group in groups.get("groups", [])),
        may={what: await _may(server, attributes) for what, attributes in RIGHTS},
    )


async def _may(server: Server, attributes: Object) -> bool:
    body = {"spec": {"resourceAttributes": {**attributes, "namespace": server.namespace}}}
    answer = msgspec.json.decode(await server.api.write("POST", REVIEWS.path(), body))
    return bool(answer["status"].get("allowed"))


def draw(findings: Sequence[Finding], style: Style) -> list[str]:
    """Findings as a table, each with what to do below it."""
    width = max(len(one.check) for one in findings) + max(map(len, Severity)) + 4
    rows = table(
        [(Cell(one.severity, COLOURS[one.severity]), one.check, one.found) for one in findings], style
    )
    lines: list[str] = []
    for row, one in zip(rows, findings, strict=True):
        lines += [row, *([f"{'':{width}}-> {one.remedy}"] if one.remedy else [])]
    return lines


COMMAND: Final = Command("doctor", "what is wrong with the cluster, and what to do about it", add, run)
