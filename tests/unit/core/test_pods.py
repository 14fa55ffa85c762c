"""Whole pods, as the API server gets them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.builders import SETTINGS, UID, World, job
from tpu_operator.core import names
from tpu_operator.core.jobview import gang_spec
from tpu_operator.core.objects.pods import PodFactory

if TYPE_CHECKING:
    from tpu_operator.core.objects.hosts import BuiltPod

TPU = {"accelerator": "v5e", "topology": "4x4"}
SINGLE_HOST = {"accelerator": "v5e", "topology": "2x2"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HEAD = {"spec": {"containers": [{"name": "driver", "image": "driver:1", "command": ["drive"]}]}}


def factory(name: str = "train", **spec: Any) -> PodFactory:
    the_job = job(name, **spec)
    return PodFactory(the_job, gang_spec(the_job), SETTINGS)


def build(slice_index: int = 0, host: int = 0, attempt: int = 0, **spec: Any) -> BuiltPod:
    built = factory(**spec).worker(slice_index, host, attempt)
    kubernetes_validate.validate(built.manifest, "1.37", strict=True)
    return built


def pod_spec(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = build(**spec).manifest["spec"]
    return found


def main(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod_spec(**spec)["containers"][0]
    return found


def run(**fields: Any) -> dict[str, Any]:
    return {"run": {"command": ["python", "train.py"]} | fields}


def template(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"template": {"spec": ({"containers": list(containers)} if containers else {}) | more}}


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in container.get("env", [])}


def test_the_smallest_pod_in_full() -> None:
    built = build(slice_index=0, host=2, attempt=3)
    pod = built.manifest
    revision = pod["metadata"]["labels"].pop("tpu-operator.dev/revision")
    assert (len(revision), built.conflicts, built.overrides) == (10, (), ())
    assert pod["spec"]["containers"][0].pop("env")
    assert pod["spec"].pop("affinity")
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train-0-2",
            "namespace": "default",
            "labels": {
                "tpu-operator.dev/job": "train",
                "tpu-operator.dev/component": "worker",
                "tpu-operator.dev/attempt": "3",
                "tpu-operator.dev/slice": "0",
                "tpu-operator.dev/host": "2",
                "tpu-operator.dev/slice-id": f"{UID}-0",
            },
            "ownerReferences": [
                {
                    "apiVersion": "tpu-operator.dev/v1alpha1",
                    "kind": "TPUJob",
                    "name": "train",
                    "uid": UID,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "restartPolicy": "Never",
            "hostname": "train-0-2",
            "subdomain": "train",
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                "cloud.google.com/gke-tpu-topology": "4x4",
                "cloud.google.com/gke-accelerator-count": "4",
            },
            "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                {
                    "name": "main",
                    "image": "example/runtime:1",
                    "command": ["tpu-launch", "--", "python", "train.py"],
                    "resources": {"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "ports": [{"name": "launcher", "containerPort": 8090, "protocol": "TCP"}],
                    "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8090}, "periodSeconds": 2},
                    "volumeMounts": [
                        {"name": "dshm", "mountPath": "/dev/shm"},
                        {"name": "tmp", "mountPath": "/tmp"},
                        {"name": "notices", "mountPath": "/etc/tpu-operator/notices", "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "dshm", "emptyDir": {"medium": "Memory"}},
                {"name": "tmp", "emptyDir": {}},
                {
                    "name": "notices",
                    "downwardAPI": {
                        "items": [
                            {
                                "path": "maintenance",
                                "fieldRef": {
                                    "fieldPath": "metadata.annotations['tpu-operator.dev/maintenance']"
                                },
                            }
                        ]
                    },
                },
            ],
        },
    }


class TestNames:
    @pytest.mark.parametrize("size", [1, 50, 57, 58, 59])
    def test_case_7_names_near_63_characters_agree_everywhere(self, size: int) -> None:
        """Nothing is cut: the API refuses names that would have to be."""
        name = "n" * size
        the_world = World(job(name)).settle()
        (service,) = the_world.services
        pods = [factory(name=name).worker(0, host, 0).manifest for host in range(4)]
        for host, pod in enumerate(pods):
            spec, env = pod["spec"], variables(pod["spec"]["containers"][0])
            own = f"{spec['hostname']}.{spec['subdomain']}"
            assert spec["subdomain"] == service
            assert spec["hostname"] == pod["metadata"]["name"] == names.worker_name(name, 0, host)
            assert len(spec["hostname"]) <= 63
            assert env["TPU_WORKER_HOSTNAMES"].split(",")[host] == own
            assert own in env["TPU_PROCESS_ADDRESSES"]
            assert own in env["TORCH_TPU_SLICEBUILDER_ADDRESSES"]
        first = variables(pods[0]["spec"]["containers"][0])["TPU_WORKER_HOSTNAMES"].split(",")[0]
        assert {variables(p["spec"]["containers"][0])["MASTER_ADDR"] for p in pods} == {first}

    def test_case_1_every_name_in_the_list_is_a_pod_behind_the_service(self) -> None:
        the_world = World(job(tpu=TPU | {"slices": 2})).settle()
        (service,) = the_world.services.values()
        for index in range(2):
            env = variables(main(slice_index=index, tpu=TPU | {"slices": 2}))
            for dns in env["TPU_WORKER_HOSTNAMES"].split(","):
                pod, subdomain = dns.split(".")
                assert subdomain == service.metadata.name
                labels = the_world.pods[pod].metadata.labels
                assert service.spec.selector.items() <= labels.items()

    def test_case_2_names_use_the_subdomain_that_the_user_chose(self) -> None:
        spec = template(subdomain="mesh")
        pod = build(**spec).manifest["spec"]
        assert pod["subdomain"] == "mesh"
        env = variables(pod["containers"][0])
        assert env["TPU_WORKER_HOSTNAMES"].split(",") == [f"train-0-{host}.mesh" for host in range(4)]
        assert env["MASTER_ADDR"] == "train-0-0.mesh"
        assert set(World(job(**spec)).settle().services) == {"mesh"}

    @pytest.mark.parametrize("subdomain", [None, ""])
    def test_case_2_an_empty_subdomain_is_none(self, subdomain: str | None) -> None:
        env = variables(
            factory(**template(subdomain=subdomain)).worker(0, 0, 0).manifest["spec"]["containers"][0]
        )
        assert env["TPU_WORKER_HOSTNAMES"].startswith("train-0-0.train,")


class TestNodes:
    @pytest.mark.parametrize(
        ("tpu", "labels"),
        [
            ({"accelerator": "v4", "topology": "2x2x4"}, ("tpu-v4-podslice", "2x2x4", "4")),
            (
                {"accelerator": "v5e", "topology": "2x4", "chipsPerHost": 8},
                ("tpu-v5-lite-podslice", "2x4", "8"),
            ),
            ({"accelerator": "v6e", "topology": "1x1"}, ("tpu-v6e-slice", "1x1", "1")),
            ({"accelerator": "tpu7x", "topology": "4x4x4"}, ("tpu7x", "4x4x4", "4")),
            ({"accelerator": "tpu9", "topology": "4x4", "chipsPerHost": 2}, ("tpu9", "4x4", "2")),
        ],
    )
    def test_three_labels_choose_the_node(self, tpu: dict[str, Any], labels: tuple[str, str, str]) -> None:
        spec = pod_spec(tpu=tpu)
        assert tuple(spec["nodeSelector"].values()) == labels
        assert list(spec["nodeSelector"]) == [names.NODE_ACCELERATOR, names.NODE_TOPOLOGY, names.NODE_CHIPS]
        assert spec["containers"][0]["resources"]["limits"] == {"google.com/tpu": labels[2]}

    @pytest.mark.parametrize(
        ("capacity", "labels"),
        [
            ({}, {}),
            ({"spot": False}, {}),
            ({"spot": True}, {"cloud.google.com/gke-spot": "true"}),
            ({"flexStart": True}, {"cloud.google.com/gke-flex-start": "true"}),
            ({"reservation": "r-1"}, {"cloud.google.com/reservation-name": "r-1"}),
            ({"provisioningRequest": "p"}, {"autoscaling.gke.io/provisioning-request": "p"}),
            (
                {"nodePool": "a", "spot": True},
                {"cloud.google.com/gke-nodepool": "a", "cloud.google.com/gke-spot": "true"},
            ),
        ],
    )
    def test_capacity(self, capacity: dict[str, Any], labels: dict[str, str]) -> None:
        selector = pod_spec(tpu=TPU | {"capacity": capacity})["nodeSelector"]
        assert {
            key: value for key, value in selector.items() if not key.startswith("cloud.google.com/gke-tpu")
        } == {"cloud.google.com/gke-accelerator-count": "4"} | labels

    def test_users_may_ask_for_more(self) -> None:
        built = build(
            **template(nodeSelector={"zone": "b"}, tolerations=[{"key": "team", "operator": "Exists"}])
        )
        assert built.conflicts == ()
        assert built.manifest["spec"]["nodeSelector"]["zone"] == "b"
        assert [t["key"] for t in built.manifest["spec"]["tolerations"]] == ["google.com/tpu", "team"]


class TestPlacement:
    def test_one_slice_in_one_pool_and_one_pool_for_one_slice(self) -> None:
        affinity = pod_spec(slice_index=1, tpu=TPU | {"slices": 2})["affinity"]
        mine = {"key": "tpu-operator.dev/slice-id", "values": [f"{UID}-1"]}
        expected = {
            "podAffinity": [mine | {"operator": "In"}],
            "podAntiAffinity": [
                mine | {"operator": "NotIn"},
                {"key": "tpu-operator.dev/slice-id", "operator": "Exists"},
            ],
        }
        for kind, expressions in expected.items():
            (term,) = affinity[kind][REQUIRED]
            assert term["topologyKey"] == "cloud.google.com/gke-nodepool"
            assert term["labelSelector"]["matchExpressions"] == expressions
            assert term["namespaceSelector"] == {}, "of all namespaces"

    def test_shared_pools(self) -> None:
        assert list(pod_spec(scheduling={"placement": "Shared"})["affinity"]) == ["nodeAffinity"]

    def test_a_slice_of_one_host_shares_pools_by_nature(self) -> None:
        assert list(pod_spec(tpu=SINGLE_HOST)["affinity"]) == ["nodeAffinity"]

    def test_what_the_scheduler_places_goes_to_nodes_without_maintenance_if_it_can(self) -> None:
        (term,) = pod_spec()["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (expression,) = term["preference"]["matchExpressions"]
        assert expression == {
            "key": "cloud.google.com/scheduled-maintenance-time",
            "operator": "DoesNotExist",
        }

    def test_case_63_terms_of_the_user_are_added(self) -> None:
        term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
        affinity = pod_spec(**template(affinity={"podAffinity": {REQUIRED: [term]}}))["affinity"]
        assert len(affinity["podAffinity"][REQUIRED]) == 2
        assert term in affinity["podAffinity"][REQUIRED]
        assert len(affinity["podAntiAffinity"][REQUIRED]) == 1

    def test_priority(self) -> None:
        assert pod_spec(scheduling={"priorityClassName": "high"})["priorityClassName"] == "high"


class TestMain:
    def test_everything_that_run_may_say(self) -> None:
        container = main(
            **run(
                args=["--steps", "1"],
                workingDir="/src",
                env=[
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                ],
                resources={"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
            )
        )
        assert container["command"] == ["tpu-launch", "--", "python", "train.py"]
        assert (container["args"], container["workingDir"]) == (["--steps", "1"], "/src")
        assert [e["name"] for e in container["env"][-2:]] == ["A", "B"]
        assert container["resources"] == {
            "requests": {"cpu": 2, "memory": "4Gi", "google.com/tpu": "4"},
            "limits": {"memory": "8Gi", "google.com/tpu": "4"},
        }

    def test_what_is_not_said_is_not_there(self) -> None:
        assert not {"args", "workingDir"} & main().keys()

    @pytest.mark.parametrize("where", ["limits", "requests"])
    def test_requests_of_chips_equal_limits_wherever_a_second_container_names_them(self, where: str) -> None:
        two = [
            {"name": "main", "resources": {"limits": {"google.com/tpu": 2}}},
            {"name": "second", "image": "x", "resources": {where: {"google.com/tpu": 2, "cpu": 1}}},
        ]
        for container in pod_spec(**template(*two))["containers"]:
            resources = container["resources"]
            assert resources["requests"]["google.com/tpu"] == resources["limits"]["google.com/tpu"] == 2

    def test_the_users_service_account_may_be_mounted(self) -> None:
        assert pod_spec(**template(automountServiceAccountToken=True))["automountServiceAccountToken"] is True


class TestLauncher:
    def test_our_image_brings_the_launcher_along(self) -> None:
        for spec in (
            {},
            run(image=SETTINGS.runtime_image),
            template({"name": "main", "image": SETTINGS.runtime_image}),
        ):
            pod = pod_spec(**spec)
            assert pod["containers"][0]["command"][:2] == ["tpu-launch", "--"]
            assert "initContainers" not in pod

    @pytest.mark.parametrize(
        "spec",
        [run(image="theirs:1"), template({"name": "main", "image": "theirs:1"})],
        ids=["run.image", "template"],
    )
    def test_into_any_other_image_it_is_copied(self, spec: dict[str, Any]) -> None:
        pod = pod_spec(**spec)
        container = pod["containers"][0]
        assert container["image"] == "theirs:1"
        assert container["command"] == ["python3", "/tpu-operator/tpu-launch.pyz", "--", "python", "train.py"]
        mount = {"name": "tpu-operator", "mountPath": "/tpu-operator"}
        assert mount in container["volumeMounts"]
        assert {"name": "tpu-operator", "emptyDir": {}} in pod["volumes"]
        assert pod["initContainers"] == [
            {
                "name": "tpu-launch",
                "image": "example/operator:1",
                "command": ["cp", "/usr/local/share/tpu-operator/tpu-launch.pyz", "/tpu-operator/"],
                "volumeMounts": [mount],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ]

    def test_the_templates_image_stands_against_that_of_run(self) -> None:
        spec = run(image="theirs:1") | template({"name": "main", "image": SETTINGS.runtime_image})
        assert "initContainers" not in pod_spec(**spec)

    def test_other_containers_images_do_not_matter(self) -> None:
        assert "initContainers" not in pod_spec(**template({"name": "logs", "image": "shipper"}))

    def test_the_users_init_containers_come_after_ours(self) -> None:
        spec = run(image="theirs:1") | template(initContainers=[{"name": "fetch", "image": "x"}])
        assert [c["name"] for c in pod_spec(**spec)["initContainers"]] == ["tpu-launch", "fetch"]


class TestPreflight:
    def test_there_is_none_unless_asked_for(self) -> None:
        assert "initContainers" not in pod_spec()

    def test_it_has_all_that_the_main_container_has(self) -> None:
        spec = pod_spec(**run(preflight=True, env=[{"name": "A", "value": "1"}], workingDir="/w"))
        (doctor,) = spec["initContainers"]
        main = spec["containers"][0]
        assert doctor["command"] == ["tpu-launch", "doctor", "--preflight", "--python", "python"]
        for field in ("image", "env", "resources", "volumeMounts"):
            assert doctor[field] == main[field]
        assert {"name": "A", "value": "1"} in doctor["env"]
        assert set(doctor) == {
            "name", "command", "image", "env", "resources", "volumeMounts", "terminationMessagePolicy",
        }  # fmt: skip

    def test_in_images_that_are_not_ours_it_comes_after_the_launcher_and_the_users_own(self) -> None:
        spec = run(image="theirs:1", preflight=True) | template(
            initContainers=[{"name": "fetch", "image": "x"}]
        )
        *_, fetch, doctor = pod_spec(**spec)["initContainers"]
        assert (fetch["name"], doctor["name"], doctor["image"]) == ("fetch", "tpu-doctor", "theirs:1")
        assert doctor["command"][:3] == ["python3", "/tpu-operator/tpu-launch.pyz", "doctor"]


class TestCompileCache:
    @pytest.mark.parametrize(
        ("cache", "source"),
        [
            ({"persistentVolumeClaim": "c"}, {"persistentVolumeClaim": {"claimName": "c"}}),
            ({"hostPath": "/var/x"}, {"hostPath": {"path": "/var/x", "type": "DirectoryOrCreate"}}),
        ],
    )
    def test_a_directory_is_mounted_and_named_to_the_frameworks(
        self, cache: dict[str, str], source: dict[str, Any]
    ) -> None:
        pod = pod_spec(**run(compileCache=cache))
        assert {"name": "compile-cache"} | source in pod["volumes"]
        container = pod["containers"][0]
        assert {"name": "compile-cache", "mountPath": "/var/cache/tpu-operator"} in container["volumeMounts"]
        assert variables(container)["JAX_COMPILATION_CACHE_DIR"] == "/var/cache/tpu-operator"
        assert variables(container)["TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"] == "/var/cache/tpu-operator"

    def test_a_location_is_only_named(self) -> None:
        pod = pod_spec(**run(compileCache={"uri": "gs://bucket/x"}))
        assert not [v for v in pod["volumes"] if v["name"] == "compile-cache"]
        assert variables(pod["containers"][0])["JAX_COMPILATION_CACHE_DIR"] == "gs://bucket/x"

    def test_a_users_own_variable_stands(self) -> None:
        env = [{"name": "JAX_COMPILATION_CACHE_DIR", "value": "/mine"}]
        found = variables(main(**run(env=env, compileCache={"uri": "gs://bucket/x"})))
        assert found["JAX_COMPILATION_CACHE_DIR"] == "/mine"
        assert found["TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"] == "gs://bucket/x"

    def test_none(self) -> None:
        assert not [name for name in variables(main()) if "CACHE" in name]


class TestGracePeriod:
    @pytest.mark.parametrize(("pods", "processes"), [(300, "295"), (10, "5"), (4, "2"), (0, "0")])
    def test_processes_get_all_of_it_but_the_launchers_last_words(self, pods: int, processes: str) -> None:
        spec = template(terminationGracePeriodSeconds=pods)
        assert variables(main(**spec))["TPU_LAUNCH_GRACE_SECONDS"] == processes

    def test_the_users_own_number_stands(self) -> None:
        spec = template(terminationGracePeriodSeconds=300)
        spec |= run(env=[{"name": "TPU_LAUNCH_GRACE_SECONDS", "value": "60"}])
        assert variables(main(**spec))["TPU_LAUNCH_GRACE_SECONDS"] == "60"

    def test_left_alone(self) -> None:
        assert "TPU_LAUNCH_GRACE_SECONDS" not in variables(main())


class TestHostNetwork:
    def test_names_of_peers_are_looked_up_in_the_cluster(self) -> None:
        assert pod_spec(**template(hostNetwork=True))["dnsPolicy"] == "ClusterFirstWithHostNet"

    def test_the_users_policy_stands(self) -> None:
        assert pod_spec(**template(hostNetwork=True, dnsPolicy="Default"))["dnsPolicy"] == "Default"
        assert "dnsPolicy" not in pod_spec()


class TestTemplate:
    def test_containers_are_merged_by_name(self) -> None:
        theirs: list[dict[str, Any]] = [
            {"name": "logs", "image": "shipper"},
            {"name": "main", "env": [{"name": "A", "value": "1"}], "securityContext": {"privileged": True}},
        ]
        first, second = pod_spec(**template(*theirs))["containers"]
        assert (first["name"], second) == ("main", theirs[0])
        assert first["securityContext"] == {"privileged": True}
        assert first["command"] == ["tpu-launch", "--", "python", "train.py"]
        assert variables(first)["A"] == "1"
        assert variables(first)["TPU_WORKER_ID"] == "0"

    def test_labels_and_annotations_are_added(self) -> None:
        metadata = {
            "labels": {"team": "a"},
            "annotations": {"note": "b"},
            "name": "ignored",
            "finalizers": ["x"],
        }
        found = build(template={"metadata": metadata}).manifest["metadata"]
        assert (found["labels"]["team"], found["annotations"]) == ("a", {"note": "b"})
        assert found["name"] == "train-0-0"
        assert "finalizers" not in found

    @pytest.mark.parametrize("empty", [{}, {"metadata": {}}, {"spec": {}}, {"metadata": {"labels": {}}}])
    def test_an_empty_template_changes_nothing_but_the_revision(self, empty: dict[str, Any]) -> None:
        with_it, without = build(template=empty).manifest, build().manifest
        for pod in (with_it, without):
            pod["metadata"]["labels"].pop("tpu-operator.dev/revision")
        assert with_it == without

    @pytest.mark.parametrize(
        ("over", "field"),
        [
            ({"spec": {"restartPolicy": "OnFailure"}}, "spec.restartPolicy is 'OnFailure'"),
            ({"spec": {"hostname": "mine"}}, "spec.hostname is 'mine'"),
            (
                {"spec": {"nodeSelector": {names.NODE_CHIPS: "8"}}},
                f"spec.nodeSelector[{names.NODE_CHIPS}] is '8'",
            ),
            ({"spec": {"nodeSelector": None}}, f"spec.nodeSelector[{names.NODE_CHIPS}] is absent"),
            (
                {"metadata": {"labels": {names.LABEL_HOST: "7"}}},
                f"metadata.labels[{names.LABEL_HOST}] is '7'",
            ),
        ],
    )
    def test_conflicts_say_what_is_and_what_is_needed(self, over: dict[str, Any], field: str) -> None:
        found = factory(template=over).worker(0, 0, 0).conflicts
        assert any(text.startswith(f"spec.template.{field}, the operator needs ") for text in found)

    def test_chips_that_are_taken_from_the_main_container(self) -> None:
        none = {"name": "main", "resources": {"limits": {"google.com/tpu": None}}}
        other = {"name": "other", "image": "x", "resources": {"limits": {"google.com/tpu": "4"}}}
        (conflict,) = factory(**template(none, other)).worker(0, 0, 0).conflicts
        assert conflict.startswith("spec.template.spec.containers[main] asks for no google.com/tpu")

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [("BIG", "put it into a ConfigMap"), ("TPU_WORKER_HOSTNAMES", "shorten the job's name")],
    )
    def test_a_variable_that_linux_would_not_pass_on(self, name: str, remedy: str) -> None:
        huge = {"name": "main", "env": [{"name": name, "value": "x" * 131_072}]}
        (conflict,) = factory(**template(huge)).worker(0, 0, 0).conflicts
        assert conflict.startswith(f"variable {name} of container main takes {131_074 + len(name)} bytes")
        assert remedy in conflict

    def test_numbers_without_end_are_a_conflict_and_no_exception(self) -> None:
        chips = {"limits": {"google.com/tpu": "9" * 5000}}
        built = factory(**template({"name": "main", "resources": chips})).worker(0, 0, 0)
        assert "ask for 0 google.com/tpu" in built.conflicts[0]
        port = {"name": "TPU_PROCESS_PORT", "value": "9" * 5000}
        assert build(**run(env=[port])).overrides == ("TPU_PROCESS_PORT",)

    def test_the_spec_is_read_only(self) -> None:
        second = {"name": "second", "image": "x", "resources": {"limits": {"google.com/tpu": "2"}}}
        spec = template(second, initContainers=[second | {"name": "check"}])
        before = copy.deepcopy(spec)
        factory_of_all = factory(**spec)
        for host in range(2):
            factory_of_all.worker(0, host, 0)
        assert factory_of_all.job.spec.template == before["template"]

    def test_case_13_every_host_has_its_own_identity_in_containers_that_only_the_user_has_named(self) -> None:
        chips: dict[str, Any] = {"resources": {"limits": {"google.com/tpu": "2"}}}
        two: list[dict[str, Any]] = [{"name": "main", **chips}, {"name": "second", "image": "x", **chips}]
        init = [{"name": "check", "image": "x", **chips}]
        one_factory = factory(**template(*two, initContainers=init))
        pods = [one_factory.worker(0, host, 0).manifest["spec"] for host in range(4)]
        assert [variables(p["containers"][1])["TPU_WORKER_ID"] for p in pods] == ["1", "3", "5", "7"]
        assert [variables(p["initContainers"][0])["TPU_WORKER_ID"] for p in pods] == ["0", "1", "2", "3"]

    def test_case_13_the_port_that_the_user_chose_for_the_only_container(self) -> None:
        env = variables(main(host=1, **run(env=[{"name": "TPU_PROCESS_PORT", "value": "9000"}])))
        assert env["TPU_PROCESS_PORT"] == "9000"
        addresses = env["TPU_PROCESS_ADDRESSES"].split(",")
        assert addresses[:5] == [f"train-0-0.train:{9000 + i}" for i in range(4)] + ["train-0-1.train:9000"]


class TestHead:
    def test_it_is_the_users_own_but_for_name_and_life(self) -> None:
        built = factory(head=HEAD).head(2)
        kubernetes_validate.validate(built.manifest, "1.37", strict=True)
        metadata = built.manifest["metadata"]
        assert metadata["name"] == "train-head"
        assert metadata["labels"].pop("tpu-operator.dev/revision")
        assert metadata["labels"] == {
            "tpu-operator.dev/job": "train",
            "tpu-operator.dev/component": "head",
            "tpu-operator.dev/attempt": "2",
            "tpu-operator.dev/headed": "true",
        }
        assert metadata["ownerReferences"][0]["uid"] == UID
        assert built.manifest["spec"] == {
            "restartPolicy": "Never",
            "hostname": "train-head",
            "subdomain": "train",
            "enableServiceLinks": False,
            "containers": HEAD["spec"]["containers"],
        }

    def test_workers_do_not_depend_on_it(self) -> None:
        with_it, without = build(head=HEAD).manifest, build().manifest
        for pod in (with_it, without):
            pod["metadata"]["labels"].pop("tpu-operator.dev/revision")
        assert with_it["metadata"]["labels"].pop("tpu-operator.dev/headed") == "true"
        assert with_it == without

    def test_conflicts(self) -> None:
        head = {"spec": HEAD["spec"] | {"restartPolicy": "Always"}}
        assert factory(head=head).head(0).conflicts == (
            "spec.head.spec.restartPolicy is 'Always', the operator needs 'Never'",
        )


class TestRevision:
    def test_it_is_the_same_on_all_hosts_and_attempts(self) -> None:
        labels = [build(host=host, attempt=attempt).manifest for host, attempt in ((0, 0), (3, 0), (0, 2))]
        assert len({pod["metadata"]["labels"]["tpu-operator.dev/revision"] for pod in labels}) == 1

    @pytest.mark.parametrize(
        ("spec", "same"),
        [
            ({"failurePolicy": {"maxRestarts": 9}}, True),
            ({"suspend": True}, True),
            ({"ttlSecondsAfterFinished": 1}, True),
            (run(args=["x"]), False),
            (template(subdomain="x"), False),
            ({"head": HEAD}, False),
            ({"scheduling": {"placement": "Shared"}}, False),
            ({"tpu": TPU | {"slices": 2}}, False),
        ],
    )
    def test_it_changes_with_what_pods_are_made_from_and_nothing_else(
        self, spec: dict[str, Any], same: bool
    ) -> None:
        assert (factory(**spec).revision == factory().revision) == same
