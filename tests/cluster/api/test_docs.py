"""The API server takes all that the documentation and the examples show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cluster.api.client import inference, job
from tests.docs import PAGES, ROOT, yaml_blocks
from tpu_operator.api import GROUP
from tpu_operator.api.tpuinference import TPUInferenceSpec

if TYPE_CHECKING:
    from tests.cluster.api.client import Jobs

BLOCKS = [pytest.param(body, id=where) for page in PAGES for where, body in yaml_blocks(page)]
SERVING = {field.alias for field in TPUInferenceSpec.model_fields.values()}
FILES = sorted((ROOT / "examples").glob("*.yaml"))


AUTOSCALER = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}


def ours(body: dict[str, Any]) -> bool:
    return str(body.get("apiVersion", "")).startswith(GROUP)


@pytest.mark.parametrize("body", BLOCKS)
def test_yaml_of_the_documentation(jobs: Jobs, body: dict[str, Any]) -> None:
    """A whole object of ours, or of an autoscaler, or parts of one: a spec for the smallest one, a status."""
    if ours(body):
        assert jobs.refusal(body) == ""
    if AUTOSCALER.items() <= body.items():
        jobs.kubectl("apply", "--dry-run=server", "--filename=-", f"--namespace={jobs.namespace}", stdin=body)
    if body.keys() == {"spec"}:
        serves = body["spec"].keys() <= SERVING
        assert jobs.refusal(inference(body["spec"]) if serves else job(body["spec"])) == ""
    if body.keys() == {"status"}:
        assert jobs.refusal({**job(), "status": body["status"]}) == ""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_examples(jobs: Jobs, file: Any) -> None:
    for body in yaml.safe_load_all(file.read_text()):
        if ours(body):
            assert jobs.refusal(body) == ""
        else:
            jobs.kubectl(
                "apply", "--dry-run=server", "--filename=-", f"--namespace={jobs.namespace}", stdin=body
            )
