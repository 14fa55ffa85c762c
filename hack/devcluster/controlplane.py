"""etcd, API server, controller manager and scheduler: their files and flags."""

import base64
import json
import secrets
from pathlib import Path
from typing import Any

from hack.devcluster.api import Api
from hack.devcluster.process import Component
from hack.devcluster.state import Layout, Record

SERVICES = "10.96.0.0/16"
_ADMIN = "admin"
_OWN = "devcluster"
_INTERNAL = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns", "kwok", _OWN)
# The PodGroup API of Kubernetes 1.37: the gate on all three, the API version on the server's. Without the
# controller manager, nobody takes the finalizer off that the API server puts on each PodGroup.
_GANG = "--feature-gates=GenericWorkload=true"
_ETCD = "http://127.0.0.1:2379"


def write_files(layout: Layout) -> None:
    """Write the keys, tokens and policies that the API server starts with."""
    layout.config.mkdir(mode=0o700)
    tokens = {user: secrets.token_hex(16) for user in (_ADMIN, *_INTERNAL)}
    rows = (f'{token},{user},{user},"system:masters"\n' for user, token in tokens.items())
    _tokens(layout).write_text("".join(rows))
    _service_account_key(layout).write_text(_new_key())
    (layout.config / "audit-policy.json").write_text(json.dumps(audit_policy()))


def write_kubeconfigs(layout: Layout, server: str) -> None:
    """Write the kubeconfigs, once the API server has made its certificate."""
    authority = base64.b64encode(certificate(layout).read_bytes()).decode()
    for user in (_ADMIN, *_INTERNAL):
        path = layout.kubeconfig if user == _ADMIN else layout.credentials(user)
        path.touch(mode=0o600)
        path.write_text(
            json.dumps(_kubeconfig(layout.id, server, authority, user, _token(layout, user)), indent=2)
        )


def connect(layout: Layout, record: Record) -> Api:
    """Make a client of the API server, with all rights."""
    return Api(record.server, _token(layout, _OWN), certificate(layout))


def _token(layout: Layout, user: str) -> str:
    rows = (line.split(",") for line in _tokens(layout).read_text().splitlines())
    return next(row[0] for row in rows if row[1] == user)


def certificate(layout: Layout) -> Path:
    """File with the API server's self-signed certificate, its own authority."""
    return layout.config / "apiserver.crt"


def components(layout: Layout, record: Record, bins: dict[str, Path]) -> list[Component]:
    """Describe the four processes, in the order to start them."""
    ip = record.server_ip
    rates = [f"--kube-api-{kind}={record.shape.api_qps}" for kind in ("qps", "burst") if record.shape.api_qps]
    return [
        Component("etcd", [bins["etcd"], *_etcd_flags(layout)]),
        Component(
            "kube-apiserver",
            [bins["kube-apiserver"], *_apiserver_flags(layout, ip)],
            f"{record.server}/readyz",
        ),
        Component(
            "kube-controller-manager",
            [bins["kube-controller-manager"], *_controller_manager_flags(layout), *rates],
            f"https://{ip}:10257/healthz",
        ),
        Component(
            "kube-scheduler",
            [
                bins["kube-scheduler"],
                f"--kubeconfig={layout.credentials('kube-scheduler')}",
                "--leader-elect=false",
                _GANG,
                *rates,
            ],
            f"https://{ip}:10259/readyz",
        ),
    ]


def audit_policy() -> dict[str, Any]:
    """Log who asked for what, for all but the cluster's own components, which would drown it."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": [*_INTERNAL, "system:apiserver"]},
            {"level": "None", "nonResourceURLs": ["/livez*", "/readyz*", "/healthz*", "/openapi*"]},
            {"level": "Metadata"},
        ],
    }


def _etcd_flags(layout: Layout) -> list[str]:
    return [
        f"--data-dir={layout.dir / 'etcd'}",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
        # The data does not outlive the cluster, and a disk's fsync is what starting it would wait for.
        "--unsafe-no-fsync",
    ]


def _apiserver_flags(layout: Layout, ip: str) -> list[str]:
    key = _service_account_key(layout)
    return [
        f"--etcd-servers={_ETCD}",
        f"--cert-dir={layout.config}",
        "--secure-port=6443",
        "--bind-address=0.0.0.0",
        # The address that the host uses is one that pods reach too, and the certificate is for it.
        f"--advertise-address={ip}",
        f"--service-cluster-ip-range={SERVICES}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--token-auth-file={_tokens(layout)}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        # As on OpenShift: who makes children that hold up the deletion of their owner needs a right for that.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        "--kubelet-preferred-address-types=InternalIP",
        f"--audit-policy-file={layout.config / 'audit-policy.json'}",
        f"--audit-log-path={layout.audit_log}",
        _GANG,
        "--runtime-config=scheduling.k8s.io/v1beta1=true",
    ]


def _controller_manager_flags(layout: Layout) -> list[str]:
    return [
        f"--kubeconfig={layout.credentials('kube-controller-manager')}",
        f"--service-account-private-key-file={_service_account_key(layout)}",
        f"--root-ca-file={certificate(layout)}",
        # No account for each controller: making 40 of them at the default client rate takes five seconds.
        "--use-service-account-credentials=false",
        "--leader-elect=false",
        _GANG,
        # Pods of all nodes share one range, so nodes get none of their own.
        "--controllers=*,-nodeipam",
    ]


def _tokens(layout: Layout) -> Path:
    return layout.config / "tokens.csv"


def _service_account_key(layout: Layout) -> Path:
    return layout.config / "service-account.key"


def _new_key() -> str:
    """Make an EC private key on P-256 (RFC 5915): the scalar and the curve are all that such a file needs."""
    scalar = secrets.token_bytes(32)
    curve = bytes.fromhex("a00a06082a8648ce3d030107")
    body = bytes.fromhex("020101") + bytes([4, len(scalar)]) + scalar + curve
    der = base64.b64encode(bytes([0x30, len(body)]) + body).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{der[:64]}\n{der[64:]}\n-----END EC PRIVATE KEY-----\n"


def _kubeconfig(name: str, server: str, authority: str, user: str, bearer: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": user, "user": {"token": bearer}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
