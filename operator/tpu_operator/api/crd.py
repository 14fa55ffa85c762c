"""The CustomResourceDefinitions, made from the models.

python -m tpu_operator.api.crd --write crds   write them
python -m tpu_operator.api.crd --check crds   fail, and show the difference, unless they are up to date
"""

import argparse
import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tpu_operator.api.common import GROUP, VERSION, Model
from tpu_operator.api.schema import structural
from tpu_operator.api.tpuinference import TPUInference
from tpu_operator.api.tpuinferencescaler import TPUInferenceScaler
from tpu_operator.api.tpujob import TPUJob

CATEGORY = "tpu"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    """Shown only with `-o wide`."""

    def render(self) -> dict[str, Any]:
        """Return its wire form."""
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return column | ({"priority": 1} if self.wide else {})


@dataclass(frozen=True, slots=True)
class Kind:
    """What a CRD says about a kind besides its schema."""

    model: type[Model]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()
    """Fields that `kubectl get --field-selector` knows."""
    scalable: bool = False
    """Whether it has `/scale`, with `replicas` in spec and status and `selector` in status."""

    @property
    def file_name(self) -> str:
        """Name of the CRD's file."""
        return f"{GROUP}_{self.plural}.yaml"


KINDS = (
    Kind(
        model=TPUJob,
        plural="tpujobs",
        short_name="tpuj",
        columns=(
            Column("Phase", ".status.phase"),
            Column("Ready", ".status.ready"),
            Column("Accelerator", ".spec.tpu.accelerator"),
            Column("Topology", ".spec.tpu.topology"),
            Column("Slices", ".spec.tpu.slices", "integer"),
            Column("Restarts", ".status.restarts.total", "integer"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Reason", ".status.reason", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
        selectable=(".status.phase", ".spec.tpu.accelerator"),
    ),
    Kind(
        model=TPUInference,
        plural="tpuinferences",
        short_name="tpui",
        columns=(
            Column("Phase", ".status.phase"),
            Column("Ready", ".status.ready"),
            Column("Revision", ".status.updatedRevision"),
            Column("Rollout", ".status.rollout.state"),
            Column("Hold", ".status.rollout.hold.gate"),
            Column("Restarts", ".status.restarts", "integer"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Model", ".spec.model.name", wide=True),
            Column("Step", ".status.rollout.step", wide=True),
            Column("Reason", ".status.reason", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
        selectable=(".status.phase", ".spec.model.name"),
        scalable=True,
    ),
    Kind(
        model=TPUInferenceScaler,
        plural="tpuinferencescalers",
        short_name="tpuis",
        columns=(
            Column("Desired", ".spec.replicas", "integer"),
            Column("Replicas", ".status.replicas", "integer"),
            Column("Ready", ".status.ready", "integer"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        scalable=True,
    ),
)

_SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def definition(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind."""
    name = kind.model.__name__
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}} | ({"scale": _SCALE} if kind.scalable else {}),
        "additionalPrinterColumns": [column.render() for column in kind.columns],
        "selectableFields": [{"jsonPath": path} for path in kind.selectable],
        "schema": {"openAPIV3Schema": _schema(kind.model)},
    }
    if not kind.selectable:
        del version["selectableFields"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{GROUP}",
            # Uninstalling the operator must not delete everybody's jobs.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "singular": name.lower(),
                "plural": kind.plural,
                "shortNames": [kind.short_name],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def _schema(model: type[Model]) -> dict[str, Any]:
    """Leave out what the API server itself adds to every kind."""
    schema = structural(model)
    for implied in ("apiVersion", "kind"):
        del schema["properties"][implied]
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}
    return schema


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        """Write shared values out: anchors are hard to read and to review."""
        return True


def render() -> dict[str, str]:
    """Return the content of every file, by file name."""
    return {
        kind.file_name: "# Generated from operator/tpu_operator/api by `make generate`.\n"
        + yaml.dump(definition(kind), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
        for kind in KINDS
    }


def difference(directory: Path) -> str:
    """Return a unified diff from the files in `directory` to what they should be; empty if none."""
    expected = render()
    present = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.yaml")}
    diffs = [
        line
        for name in sorted(expected | present)
        for line in difflib.unified_diff(
            present.get(name, "").splitlines(keepends=True),
            expected.get(name, "").splitlines(keepends=True),
            f"{directory / name} (committed)",
            f"{directory / name} (generated)",
        )
    ]
    return "".join(diffs)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tpu_operator.api.crd", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="DIR", help="write the CRDs into DIR")
    action.add_argument("--check", type=Path, metavar="DIR", help="compare the CRDs in DIR")
    options = parser.parse_args(arguments)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        for name, content in render().items():
            (options.write / name).write_text(content, encoding="utf-8")
        return 0
    diff = difference(options.check)
    sys.stdout.write(diff)
    if diff:
        sys.stderr.write(f"{options.check} is out of date: run `make generate` and commit the result\n")
    return 1 if diff else 0


if __name__ == "__main__":
    sys.exit(main())
