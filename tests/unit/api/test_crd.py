"""The generated CRDs: their form, the file on disk, and the command that keeps both the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tpu_operator.api import crd, reference

CRDS = Path(__file__).parents[3] / "crds"
Node = dict[str, Any]


def schema_of(kind: crd.Kind) -> Node:
    schema: Node = crd.definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every node of a structural schema with its path."""
    yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from nodes(value, f"{path}.{name}")
    for key, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from nodes(schema[key], path + suffix)


ALLOWED = {
    *("type", "description", "default", "required", "properties", "items", "additionalProperties"),
    *("enum", "format", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "maxProperties", "anyOf"),
    *("x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
}


@pytest.mark.parametrize("kind", crd.KINDS, ids=lambda kind: kind.plural)
class TestStructure:
    def test_every_node_is_structural(self, kind: crd.Kind) -> None:
        for path, node in nodes(schema_of(kind)):
            assert node.keys() <= ALLOWED, path
            assert ("type" in node) != ("x-kubernetes-int-or-string" in node), path
            assert not {"properties", "additionalProperties"} <= node.keys(), path
            assert isinstance(node.get("exclusiveMaximum", True), bool), path
            assert "format" in node or node.get("type") != "integer", path

    def test_every_list_says_how_it_merges(self, kind: crd.Kind) -> None:
        for path, node in nodes(schema_of(kind)):
            if node.get("type") == "array":
                keys = node.get("x-kubernetes-list-map-keys", [])
                assert (node["x-kubernetes-list-type"] == "map") == bool(keys), path
                assert set(keys) <= set(node["items"].get("required", [])), path
                assert "maxItems" in node, path

    def test_every_field_is_described(self, kind: crd.Kind) -> None:
        for path, node in nodes(schema_of(kind)):
            if path.rpartition(".")[2].isidentifier() and not path.startswith(".metadata"):
                assert node["description"].endswith((".", ")")), path

    def test_numbers_that_users_write_are_bounded(self, kind: crd.Kind) -> None:
        for path, node in nodes(schema_of(kind)["properties"]["spec"]):
            if node.get("type") == "integer":
                assert {"minimum", "maximum"} <= node.keys(), path

    def test_rules_say_something(self, kind: crd.Kind) -> None:
        for path, node in nodes(schema_of(kind)):
            for rule in node.get("x-kubernetes-validations", []):
                assert ("message" in rule) != ("messageExpression" in rule), path
                assert rule.keys() <= {"rule", "message", "messageExpression", "fieldPath", "reason"}, path

    def test_definition_satisfies_the_schema_of_kubernetes(self, kind: crd.Kind) -> None:
        kubernetes_validate.validate(crd.definition(kind), "1.37", strict=True)


def test_only_what_kubernetes_itself_reads_has_a_default_on_the_server() -> None:
    """Every other default lives in the operator, so that stored objects stay as users wrote them."""
    defaults = {
        f"{kind.plural}{path}": node["default"]
        for kind in crd.KINDS
        for path, node in nodes(schema_of(kind))
        if "default" in node
    }
    assert defaults == {
        "tpujobs.spec.tpu.slices": 1,
        "tpuinferences.spec.replicas": 1,
        "tpuinferencescalers.spec.replicas": 1,
    }


def test_names_and_columns() -> None:
    definition = crd.definition(crd.KINDS[0])
    names = definition["spec"]["names"]
    assert definition["metadata"]["name"] == "tpujobs.tpu-operator.dev"
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert (names["kind"], names["shortNames"], names["categories"]) == ("TPUJob", ["tpuj"], ["tpu"])
    (version,) = definition["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    columns = version["additionalPrinterColumns"]
    assert [c["name"] for c in columns if "priority" not in c] == [
        *("Phase", "Ready", "Accelerator", "Topology", "Slices", "Restarts", "Age")
    ]
    assert [c["name"] for c in columns if c.get("priority") == 1] == ["Reason", "Message"]


def test_what_can_be_scaled_has_the_subresource_for_it() -> None:
    paths = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    found = {kind.plural: crd.definition(kind)["spec"]["versions"][0]["subresources"] for kind in crd.KINDS}
    assert {plural: each.get("scale") for plural, each in found.items()} == {
        "tpujobs": None,
        "tpuinferences": paths,
        "tpuinferencescalers": paths,
    }


def test_columns_of_a_tpuinference_say_whether_it_serves_and_rolls_and_what_holds_it() -> None:
    columns = crd.definition(crd.KINDS[1])["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [c["name"] for c in columns if "priority" not in c] == [
        *("Phase", "Ready", "Revision", "Rollout", "Hold", "Restarts", "Age")
    ]


def test_committed_files_are_up_to_date() -> None:
    assert crd.difference(CRDS) == ""


def test_output_is_deterministic_and_free_of_anchors() -> None:
    assert crd.render() == crd.render()
    for kind, text in zip(crd.KINDS, crd.render().values(), strict=True):
        assert not any(line.rpartition(" ")[2].startswith(("&id", "*id")) for line in text.splitlines())
        assert yaml.safe_load(text) == crd.definition(kind)


def test_check_passes_after_write(tmp_path: Path) -> None:
    assert crd.main(["--write", str(tmp_path / "new")]) == 0
    assert crd.main(["--check", str(tmp_path / "new")]) == 0


def test_check_shows_the_difference_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crd.main(["--write", str(tmp_path)])
    file = tmp_path / "tpu-operator.dev_tpujobs.yaml"
    file.write_text(file.read_text().replace("shortNames:", "shortName:"))
    (tmp_path / "stale.yaml").write_text("kind: Old\n")
    assert crd.main(["--check", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "-    shortName:\n+    shortNames:\n" in output.out
    assert "-kind: Old\n" in output.out
    assert "run `make generate`" in output.err


def test_reference_is_up_to_date_and_a_stale_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reference.main(["--check", str(CRDS.parent / "docs" / "api.md")]) == 0
    stale = tmp_path / "api.md"
    assert reference.main(["--check", str(stale)]) == 1
    assert "run `make generate`" in capsys.readouterr().err
    assert reference.main(["--write", str(stale)]) == 0
    assert reference.main(["--check", str(stale)]) == 0


def test_reference_names_every_field_of_spec_and_status() -> None:
    page = reference.render()
    for kind in crd.KINDS:
        for path, _ in nodes(schema_of(kind)):
            if path.startswith((".spec.", ".status.")) and not path.endswith(("[]", "{}")):
                assert f"`{path[1:]}" in page
