"""What helm does to a running installation."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import crd_uid, install, wait_gone
from tests.e2e.kube import CHART, OPERATOR, Kube, job

STAY_UNTIL_TOLD = ["sh", "-c", "until [ -e /tmp/end ]; do sleep 0.2; done"]


@pytest.fixture
def uids(kube: Kube) -> list[str]:
    """UIDs of the pods of a running job named `kept`."""
    kube.apply(job("kept", STAY_UNTIL_TOLD))
    kube.wait_phase("kept", "Running")
    return pod_uids(kube)


def pod_uids(kube: Kube) -> list[str]:
    return [pod["metadata"]["uid"] for pod in kube.pods("kept")]


def end(kube: Kube) -> None:
    """Let the job come to its end, under the operator that runs now."""
    for pod in kube.pods("kept"):
        kube.kubectl("exec", pod["metadata"]["name"], "--container=main", "--", "touch", "/tmp/end")
    assert kube.finish("kept")["phase"] == "Succeeded"


@pytest.mark.usefixtures("reinstall")
def test_an_upgrade_brings_new_crds_and_touches_no_job(kube: Kube, uids: list[str], tmp_path: Path) -> None:
    before = crd_uid(kube)
    newer = tmp_path / "tpu-operator"
    shutil.copytree(CHART, newer)
    (file,) = (newer / "files" / "crds").glob("*tpujobs.yaml")
    crd = yaml.safe_load(file.read_text())
    column = {"name": "Added", "type": "string", "jsonPath": ".metadata.name"}
    crd["spec"]["versions"][0]["additionalPrinterColumns"].append(column)
    file.write_text(yaml.safe_dump(crd))

    install(kube, "--set", "logLevel=debug", chart=newer)

    columns = kube.get("crd", crd["metadata"]["name"])["spec"]["versions"][0]["additionalPrinterColumns"]
    assert columns[-1]["name"] == "Added"
    assert crd_uid(kube) == before
    assert pod_uids(kube) == uids
    end(kube)


@pytest.mark.usefixtures("reinstall")
def test_uninstalling_keeps_crds_and_jobs_and_installing_adopts_them(kube: Kube, uids: list[str]) -> None:
    before = crd_uid(kube)
    kube.helm("uninstall", OPERATOR, "--wait")
    wait_gone(kube, "clusterrole", OPERATOR)
    assert crd_uid(kube) == before
    assert pod_uids(kube) == uids
    assert kube.status("kept")["phase"] == "Running"
    install(kube)
    assert crd_uid(kube) == before
    assert pod_uids(kube) == uids
    end(kube)
