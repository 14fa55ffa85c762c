"""The rules by which models become structural schemas, one by one."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model

from tpu_operator.api.extensions import (
    ATOMIC_LIST,
    FREE_OBJECT,
    SERVER_DEFAULT,
    SET_LIST,
    map_list,
    rule,
    validations,
)
from tpu_operator.api.schema import SchemaError, structural


class Colour(StrEnum):
    """A colour."""

    RED = "Red"
    BLUE = "Blue"


class Leaf(BaseModel):
    """A leaf."""

    name: str = Field(description="Its name.")


class Tree(BaseModel):
    """A tree."""

    children: list["Tree"] = Field(default_factory=list, description="Trees.", json_schema_extra=ATOMIC_LIST)


class Circle(BaseModel):
    """A circle."""

    kind: Literal["circle"] = Field(description="Its kind.")


class Square(BaseModel):
    """A square."""

    kind: Literal["square"] = Field(description="Its kind.")


def schema_of(annotation: Any, default: Any = ..., **field: Any) -> dict[str, Any]:
    """Translate a model with one field `x`, and return that field's schema."""
    model = create_model("M", x=(annotation, Field(default, **{"description": "D.", **field})))
    result: dict[str, Any] = structural(model)["properties"]["x"]
    return result


def test_references_are_inlined_and_the_field_s_description_wins() -> None:
    assert schema_of(Leaf) == {
        "type": "object",
        "description": "D.",
        "required": ["name"],
        "properties": {"name": {"type": "string", "description": "Its name."}},
    }
    assert schema_of(Colour)["enum"] == ["Red", "Blue"]


def test_recursion_is_refused() -> None:
    with pytest.raises(SchemaError, match="Tree: contains itself"):
        structural(Tree)


def test_optional_means_not_required_and_never_null() -> None:
    model = create_model("M", x=(str | None, Field(None, description="D.", max_length=3)))
    assert structural(model) == {
        "type": "object",
        "properties": {"x": {"type": "string", "description": "D.", "maxLength": 3}},
    }


def test_const_becomes_an_enum() -> None:
    assert schema_of(Literal["one"]) == {"type": "string", "description": "D.", "enum": ["one"]}


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"gt": 0}, {"minimum": 0, "exclusiveMinimum": True}),
        ({"lt": 9}, {"maximum": 9, "exclusiveMaximum": True}),
        ({"ge": 0, "le": 9}, {"minimum": 0, "maximum": 9}),
    ],
)
def test_bounds_are_spelled_as_in_openapi_3_0(bounds: dict[str, int], expected: dict[str, Any]) -> None:
    schema = schema_of(int, **bounds)
    assert expected.items() <= schema.items()
    assert not {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} & (
        schema.keys() - expected.keys()
    )


def test_integers_have_a_format() -> None:
    assert schema_of(int)["format"] == "int64"
    assert schema_of(int, le=100)["format"] == "int32"
    assert schema_of(int, le=2**31)["format"] == "int64"


def test_int_or_string_has_the_exact_form() -> None:
    assert schema_of(int | str) == {
        "description": "D.",
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    }


@pytest.mark.parametrize("annotation", [int | bool, Leaf | str, str | bool | None])
def test_other_unions_are_refused(annotation: Any) -> None:
    with pytest.raises(SchemaError, match=r"M\.x: unions do not exist in CRDs: use one optional field"):
        schema_of(annotation)


def test_unique_items_become_a_set() -> None:
    schema = schema_of(set[str])
    assert schema["x-kubernetes-list-type"] == "set"
    assert "uniqueItems" not in schema


def test_lists_need_a_list_type() -> None:
    with pytest.raises(SchemaError, match=r"M\.x: has no list type: mark it as atomic, set or map"):
        schema_of(list[str])
    assert schema_of(list[str], json_schema_extra=ATOMIC_LIST)["x-kubernetes-list-type"] == "atomic"
    with pytest.raises(SchemaError, match="only scalars can be a set"):
        schema_of(list[Leaf], json_schema_extra=SET_LIST)


def test_map_keys_must_be_required() -> None:
    schema = schema_of(list[Leaf], json_schema_extra=map_list("name"))
    assert schema["x-kubernetes-list-map-keys"] == ["name"]
    optional = create_model("Optional", name=(str, Field("", description="Its name.")))
    with pytest.raises(SchemaError, match=r"M\.x: its key name is optional: make it required"):
        schema_of(list[optional], json_schema_extra=map_list("name"))  # type: ignore[valid-type]


def test_free_objects_must_be_marked() -> None:
    with pytest.raises(SchemaError, match=r"M\.x: holds anything"):
        schema_of(dict[str, Any])
    assert schema_of(dict[str, Any], json_schema_extra=FREE_OBJECT) == {"description": "D.", **FREE_OBJECT}
    with pytest.raises(SchemaError, match=r"M\.x: has no type"):
        schema_of(Any)


def test_dicts_keep_their_values_schema() -> None:
    assert schema_of(dict[str, int], max_length=4) == {
        "type": "object",
        "description": "D.",
        "maxProperties": 4,
        "additionalProperties": {"type": "integer", "format": "int64"},
    }
    assert "propertyNames" not in schema_of(dict[Colour, int])


def test_forbidding_fields_is_refused() -> None:
    strict = create_model("Strict", __config__=ConfigDict(extra="forbid"), a=(int, Field(description="A.")))
    with pytest.raises(SchemaError, match=r"M\.x: cannot forbid fields"):
        schema_of(strict)


@pytest.mark.parametrize(
    ("annotation", "field", "message"),
    [
        (tuple[int, str], {}, "tuples do not exist in CRDs"),
        (str, {"json_schema_extra": {"pattern": "^(?!a)"}}, "looks around"),
        (str, {"json_schema_extra": {"not": {"enum": ["a"]}}}, "'not' cannot carry types"),
        (str, {"json_schema_extra": {"patternProperties": {}}}, "patterns of keys"),
        (str, {"json_schema_extra": {"contentEncoding": "base64"}}, "contentEncoding does not exist"),
    ],
)
def test_what_crds_cannot_say_is_refused(annotation: Any, field: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        schema_of(annotation, **field)


def test_discriminated_unions_are_refused() -> None:
    with pytest.raises(SchemaError, match="unions do not exist"):
        schema_of(Annotated[Circle | Square, Field(discriminator="kind")])


def test_every_field_needs_a_description() -> None:
    with pytest.raises(SchemaError, match=r"M\.x: has no description"):
        schema_of(str, description=None)


def test_defaults_are_told_in_words_and_written_only_when_marked() -> None:
    assert schema_of(int, 3) == {"type": "integer", "description": "D. Default: 3.", "format": "int64"}
    assert schema_of(Colour, Colour.RED)["description"] == "D. Default: Red."
    assert schema_of(bool, default=False)["description"] == "D."
    marked = schema_of(int, 3, json_schema_extra={SERVER_DEFAULT: True})
    assert (marked["default"], marked["description"]) == (3, "D. Default: 3.")
    assert SERVER_DEFAULT not in marked


def test_titles_examples_and_deprecation_are_dropped() -> None:
    schema = schema_of(str, title="T", examples=["e"], deprecated=True)
    assert schema == {"type": "string", "description": "D."}


def test_rules_are_kept_and_leave_out_what_is_empty() -> None:
    static = rule("self > 0", "must be positive")
    quoting = rule("self.a > 0", "%d is not positive", values=["self.a"], path=".a")
    assert schema_of(int, json_schema_extra=validations(static))["x-kubernetes-validations"] == [
        {"rule": "self > 0", "message": "must be positive"}
    ]
    assert quoting == {
        "rule": "self.a > 0",
        "messageExpression": '"%d is not positive".format([self.a])',
        "fieldPath": ".a",
    }
