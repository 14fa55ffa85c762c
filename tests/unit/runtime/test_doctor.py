"""tpu-doctor on made-up hosts: each finding, and what the command makes of them."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.runtime.harness import RUNTIME, variables
from tpu_runtime import doctor
from tpu_runtime.doctor import CHECKS, Severity, devices, examine, host, software
from tpu_runtime.doctor.host import GIB, Clock, Host, Space

if TYPE_CHECKING:
    from pathlib import Path

OK, INFO, WARNING, ERROR = Severity


def real(**more: Any) -> dict[str, str]:
    """One host with four chips, under torchrun."""
    emulate = {"TPU_OPERATOR_EMULATE": "", "TPU_SKIP_MDS_QUERY": "true"}
    return variables(launcher="torchrun", processes=4, **emulate | more)


class Fake:
    """A good TPU host of which tests break one thing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.taken: set[int] = set()
        self.addresses = {"localhost": ("10.0.0.1",)}
        self.limits = {resource.RLIMIT_MEMLOCK: -1, resource.RLIMIT_NOFILE: 1 << 20, resource.RLIMIT_CORE: 0}
        self.sizes: dict[str, Space] = {}
        self.clock: Clock | None = Clock(synchronised=True, error_seconds=0.01)
        self.denied: set[str] = set()
        for index in range(4):
            self.chip(index)
        self.file("dev/vfio/vfio")
        self.file("usr/lib/x86_64-linux-gnu/libtcmalloc.so.4")
        self.file("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n")
        self.file("opt/venv/bin/python3")
        for name, good in software.KNOWN_GOOD.items():
            self.package(name, good)

    def file(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def chip(self, index: int, device: str = "0x006f") -> None:
        folder = f"sys/bus/pci/devices/0000:00:0{index}.0"
        self.file(f"{folder}/vendor", "0x1ae0\n")
        self.file(f"{folder}/device", f"{device}\n")
        group = self.root / f"sys/kernel/iommu_groups/{index}"
        group.mkdir(parents=True, exist_ok=True)
        link = self.root / folder / "iommu_group"
        if not link.exists():
            link.symlink_to(group)
        self.file(f"dev/vfio/{index}")

    def package(self, name: str, version: str | None) -> None:
        site = "opt/venv/lib/python3.12/site-packages"
        for old in (self.root / site).glob(f"{name.replace('-', '_')}-*.dist-info/METADATA"):
            old.unlink()
            old.parent.rmdir()
        if version:
            folder = f"{site}/{name.replace('-', '_')}-{version}.dist-info"
            self.file(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def space(self, path: Path) -> Space:
        return self.sizes.get(f"/{path.relative_to(self.root)}", Space(100 * GIB, 50 * GIB))

    def resolve(self, name: str) -> tuple[str, ...]:
        if name not in self.addresses:
            raise OSError("Name or service not known")
        return self.addresses[name]

    def host(self, env: dict[str, str] | None = None) -> Host:
        return Host(
            {"PATH": "/opt/venv/bin:/usr/bin"} | (real() if env is None else env),
            self.root,
            resolve=self.resolve,
            is_local=lambda address: address == "10.0.0.1",
            can_listen=lambda port: port not in self.taken,
            limit=lambda which: (self.limits[which], self.limits[which]),
            space=self.space,
            clock=lambda: self.clock,
            writable=lambda path: f"/{path.relative_to(self.root)}" not in self.denied,
        )


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def found(fake: Fake, check: str, env: dict[str, str] | None = None) -> list[tuple[Severity, str]]:
    """What a check says that is not well."""
    findings = examine(fake.host(env), [check])[check]
    for finding in findings:
        assert finding.severity < WARNING or (finding.why and finding.remedy), finding
    return [(each.severity, each.found) for each in findings if each.severity is not OK]


def test_nothing_is_wrong_with_a_good_host(fake: Fake) -> None:
    assert {name: found(fake, name) for name in CHECKS} == {name: [] for name in CHECKS}


def test_nothing_is_wrong_with_a_host_without_chips_in_emulation(fake: Fake) -> None:
    for node in devices.nodes(fake.host()):
        node.unlink()
    fake.limits[resource.RLIMIT_MEMLOCK] = 8 << 20
    env = real(TPU_OPERATOR_EMULATE="cpu")
    assert {name: found(fake, name, env) for name in CHECKS} == {name: [] for name in CHECKS}


def test_a_wrong_environment_is_told_as_the_launcher_tells_it(fake: Fake) -> None:
    [(severity, text)] = found(fake, "environment", real(TORCH_TPU_TOPOLOGY="2x2x1"))
    assert severity is ERROR
    assert text.startswith("TORCH_TPU_TOPOLOGY='2x2x1': expected 2,2,1")


def test_a_container_that_is_not_the_operators_has_nothing_to_be_compared_with(fake: Fake) -> None:
    [(severity, _)] = found(fake, "environment", {})
    assert severity is INFO
    assert examine(fake.host({}), ["dns"]) == {"dns": []}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"LIBTPU_INIT_ARGS": "--slicebuilder_use_insecure_grpc=false"}, "slicebuilder_use_insecure_grpc"),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
        ({"WORLD_SIZE": "4", "TPU_OPERATOR_LAUNCHER": "none"}, "WORLD_SIZE=4"),
    ],
)
def test_variables_that_are_worth_a_word(fake: Fake, changes: dict[str, str], text: str) -> None:
    [(severity, said)] = found(fake, "environment", real(**changes))
    assert severity is WARNING
    assert text in said


def test_a_metadata_server_that_is_asked(fake: Fake) -> None:
    assert found(fake, "metadata", real(TPU_SKIP_MDS_QUERY="0")) == [
        (WARNING, "TPU_SKIP_MDS_QUERY is not set")
    ]


def test_chips_that_are_missing_or_cannot_be_opened(fake: Fake) -> None:
    fake.denied.add("/dev/vfio/2")
    assert found(fake, "devices") == [(ERROR, "/dev/vfio/2 cannot be read and written")]
    (fake.root / "dev/vfio/2").unlink()
    [(severity, text)] = found(fake, "devices")
    assert (severity, text) == (ERROR, "3 device nodes (/dev/vfio/0, /dev/vfio/1, /dev/vfio/3), 4 wanted")
    [(severity, text)] = found(fake, "vfio")
    assert (severity, text) == (INFO, "v6e chip at 0000:00:02.0: /dev/vfio/2 is not in this container")


def test_chips_that_torchtpu_does_not_see(fake: Fake) -> None:
    (fake.root / "dev/vfio/vfio").unlink()
    (fake.root / "sys/bus/pci/devices/0000:00:01.0/iommu_group").unlink()
    assert found(fake, "vfio") == [
        (WARNING, "v6e chip at 0000:00:01.0 has no IOMMU group"),
        (ERROR, "/dev/vfio/vfio is missing beside the groups"),
    ]
    fake.file("dev/vfio/vfio")
    for index in range(4):
        fake.chip(index, device="0x0099")
    [(severity, text)] = found(fake, "vfio")
    assert severity is ERROR
    assert "no TPU on the PCI bus that TorchTPU 0.2.0 knows" in text


def test_chips_that_lie_idle_in_emulation(fake: Fake) -> None:
    [(severity, _)] = found(fake, "devices", real(TPU_OPERATOR_EMULATE="cpu"))
    assert severity is ERROR


def test_a_lock_that_a_killed_process_has_left(fake: Fake) -> None:
    fake.file("tmp/libtpu_lockfile")
    assert found(fake, "lockfile") == [(WARNING, "/tmp/libtpu_lockfile is there")]


@pytest.mark.parametrize(
    ("package", "version", "check", "expected"),
    [
        ("libtpu", None, "libtpu", (ERROR, "torch_tpu is installed, libtpu is not")),
        ("libtpu", "0.0.40", "versions", (ERROR, "torch_tpu 0.2.0 with libtpu 0.0.40")),
        ("torch", "2.10.0", "versions", (ERROR, "torch_tpu 0.2.0 with torch 2.10.0")),
        ("torch", None, "versions", (ERROR, "torch_tpu 0.2.0 with torch missing")),
        ("jaxlib", "0.9.0", "versions", (ERROR, "jax 0.10.2 with jaxlib 0.9.0")),
        ("tpu-raiden-torch", "99.99.0", "versions", (ERROR, "tpu-raiden-torch 99.99.0 is installed")),
        ("vllm-torchtpu", "0.0.0", "versions", (ERROR, "vllm-torchtpu 0.0.0 is a placeholder")),
    ],
)
def test_packages_that_do_not_fit(
    fake: Fake, package: str, version: str | None, check: str, expected: tuple[Severity, str]
) -> None:
    fake.package(package, version)
    assert found(fake, check) == [expected]


def test_versions_that_were_not_tried_are_only_a_note(fake: Fake) -> None:
    fake.package("torch", "2.13.0+cpu")
    assert found(fake, "versions") == []
    fake.package("torch", "2.14.0")
    [(severity, text)] = found(fake, "versions")
    assert severity is INFO
    assert text.endswith("not tried: torch 2.14.0")


def test_a_library_that_is_named_and_does_not_exist(fake: Fake) -> None:
    env = real(TPU_LIBRARY_PATH="/opt/libtpu.so", LD_PRELOAD="/opt/tcmalloc.so")
    assert found(fake, "libtpu", env) == [(ERROR, "TPU_LIBRARY_PATH=/opt/libtpu.so does not exist")]
    assert found(fake, "allocator", env) == [
        (WARNING, "LD_PRELOAD names /opt/tcmalloc.so, which does not exist")
    ]
    (fake.root / "usr/lib/x86_64-linux-gnu/libtcmalloc.so.4").unlink()
    assert found(fake, "allocator") == [(WARNING, "no tcmalloc")]


def test_packages_are_those_of_the_jobs_interpreter(fake: Fake) -> None:
    fake.file("conda/lib/python3.12/site-packages/jax-0.9.dist-info/METADATA", "Name: jax\nVersion: 0.9\n")
    host = Host({"PATH": "/opt/venv/bin"}, fake.root, python="/conda/bin/python")
    assert software.packages(host) == {"jax": "0.9"}


@pytest.mark.parametrize(
    ("check", "place", "size", "expected"),
    [
        ("shm", "/dev/shm", Space(64 << 20, 64 << 20), "/dev/shm has 64 MiB, 64 MiB free"),
        ("shm", "/dev/shm", Space(9 * GIB, 1 << 20), "/dev/shm has 9.0 GiB, 1 MiB free"),
        ("space", "/tmp", Space(9 * GIB, 1 << 20), "/tmp: 1 MiB free"),
        ("space", "/cache", Space(9 * GIB, 1 << 20), "/cache (JAX_COMPILATION_CACHE_DIR): 1 MiB free"),
    ],
)
def test_room(fake: Fake, check: str, place: str, size: Space, expected: str) -> None:
    fake.sizes[place] = size
    assert found(fake, check, real(JAX_COMPILATION_CACHE_DIR="/cache")) == [(WARNING, expected)]


def test_directories_that_cannot_be_written(fake: Fake) -> None:
    fake.denied |= {"/tmp", "/cache"}
    assert found(fake, "space", real(TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT="/cache")) == [
        (ERROR, "/tmp cannot be written"),
        (WARNING, "/cache (TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT) cannot be written"),
    ]


def test_a_cache_in_a_bucket_is_no_directory(fake: Fake) -> None:
    fake.denied.add("/gs:/bucket")
    assert found(fake, "space", real(JAX_COMPILATION_CACHE_DIR="gs://bucket")) == []


def test_limits(fake: Fake) -> None:
    fake.limits |= {resource.RLIMIT_MEMLOCK: 8 << 20, resource.RLIMIT_NOFILE: 1024, resource.RLIMIT_CORE: -1}
    assert found(fake, "limits") == [
        (WARNING, "memlock: 8 MiB"),
        (WARNING, "nofile: 1024"),
        (INFO, "core dumps are on"),
    ]


def test_memory_that_is_nearly_used_up(fake: Fake) -> None:
    fake.file("sys/fs/cgroup/memory.max", str(4 * GIB))
    fake.file("sys/fs/cgroup/memory.current", str(3 * GIB))
    assert found(fake, "memory") == []
    fake.file("sys/fs/cgroup/memory.current", str(int(3.9 * GIB)))
    assert found(fake, "memory") == [(WARNING, "memory: 3.9 GiB of 4.0 GiB used")]


def test_small_pages(fake: Fake) -> None:
    fake.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    [(severity, _)] = found(fake, "hugepages")
    assert severity is WARNING


@pytest.mark.parametrize(
    ("clock", "severity"),
    [(None, INFO), (Clock(synchronised=False, error_seconds=16.0), WARNING), (Clock(True, 2.0), WARNING)],
)
def test_clocks(fake: Fake, clock: Clock | None, severity: Severity) -> None:
    fake.clock = clock
    [(said, _)] = found(fake, "clock")
    assert said is severity


def test_ports_of_others_and_of_our_own(fake: Fake) -> None:
    fake.taken |= {8090, 8701}
    assert found(fake, "ports") == [
        (ERROR, "port 8090 (tpu-launch) is taken"),
        (ERROR, "port 8701 (libtpu's slice builder) is taken"),
    ]
    fake.file("proc/1/cmdline", "python3\0/usr/local/bin/tpu-launch\0--\0python")
    [(severity, _)] = found(fake, "ports")
    assert severity is INFO


def test_names(fake: Fake) -> None:
    fake.addresses["localhost"] = ("10.9.9.9",)
    [(severity, text)] = found(fake, "dns")
    assert severity is ERROR
    assert text == "this host's own name localhost leads to 10.9.9.9, which is not this host"
    fake.addresses.clear()
    [(severity, text)] = found(fake, "dns")
    assert severity is ERROR
    assert text == "1 of 1 names do not resolve (localhost: Name or service not known)"


def test_a_check_that_hangs_or_breaks_is_a_finding(fake: Fake) -> None:
    forever = threading.Event()

    def hang() -> Clock | None:
        forever.wait()
        return None

    def fail(_: int) -> bool:
        raise RuntimeError("odd")

    broken = Host(real(), fake.root, clock=hang, can_listen=fail)
    answers = examine(broken, ["clock", "ports"], seconds=0.2)
    forever.set()
    assert [each.found for each in answers["clock"]] == ["no answer within 0 s"]
    assert [each.found for each in answers["ports"]] == ["the check broke: RuntimeError('odd')"]


def test_what_the_launcher_looks_at(fake: Fake) -> None:
    assert doctor.essentials(fake.host()) == []
    fake.package("libtpu", None)
    fake.sizes["/dev/shm"] = Space(64 << 20, 0)
    assert [each.severity for each in doctor.essentials(fake.host())] == [ERROR, WARNING]


def test_the_launcher_does_not_emulate_where_there_are_tpus(fake: Fake, tmp_path: Path) -> None:
    emulated = real(TPU_OPERATOR_EMULATE="cpu")
    (found,) = doctor.essentials(fake.host(emulated))
    assert (found.severity, found.found) == (
        ERROR,
        "TPUs are here (/dev/vfio/0, /dev/vfio/1, /dev/vfio/2, /dev/vfio/3), and TPU_OPERATOR_EMULATE=cpu",
    )
    assert doctor.essentials(Host(emulated, tmp_path / "empty")) == []


def test_what_others_have_behind_vfio_is_no_tpu(tmp_path: Path) -> None:
    group = tmp_path / "dev/vfio/7"
    group.parent.mkdir(parents=True)
    group.touch()
    assert devices.tpus(Host({}, tmp_path)) == []


def test_this_machine_as_it_is() -> None:
    assert host.is_local("127.0.0.1")
    assert not host.is_local("192.0.2.1")
    assert "127.0.0.1" in host.resolve("localhost")
    assert host.clock() is None or host.clock()
    with pytest.raises(OSError, match="DNS name"):
        host.resolve("a" * 70)


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-W", "error", "-m", "tpu_runtime", "doctor", *arguments]
    environment = {"PYTHONPATH": str(RUNTIME)} | env
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_command_prints_a_table_or_json_and_ends_by_severity() -> None:
    good = variables(TPU_SKIP_MDS_QUERY="true")
    skip = [f"--skip={name}" for name in CHECKS if name not in {"environment", "metadata"}]
    done = run(good, *skip)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "0 errors, 0 warnings"
    done = run(good | {"TPU_SKIP_MDS_QUERY": ""}, *skip)
    assert done.returncode == 1
    assert "warning  metadata     TPU_SKIP_MDS_QUERY is not set\n" in done.stdout
    done = run(good | {"TPU_WORKER_ID": "7"}, "--json", *skip)
    assert done.returncode == 2
    answer = json.loads(done.stdout)
    assert (answer["v"], answer["severity"]) == (1, "error")
    first = answer["findings"][0]
    assert (first["check"], first["severity"]) == ("environment", "error")
    assert first["found"].startswith("TPU_WORKER_ID='7'")
    assert first["remedy"]


def test_a_preflight_fails_on_errors_only_and_leaves_them_for_the_operator(tmp_path: Path) -> None:
    message = tmp_path / "message"
    env = variables(TPU_SKIP_MDS_QUERY="", TPU_LAUNCH_TERMINATION_LOG=str(message))
    skip = [f"--skip={name}" for name in CHECKS if name not in {"environment", "metadata"}]
    assert run(env, "--preflight", *skip).returncode == 0
    assert not message.exists()
    assert run(env | {"TPU_WORKER_ID": "7"}, "--preflight", *skip).returncode == 2
    left = json.loads(message.read_bytes())
    assert (left["cause"], left["exitCode"], left["host"]) == ("LauncherError", 2, 0)
    assert left["error"].startswith("preflight: TPU_WORKER_ID='7'")
