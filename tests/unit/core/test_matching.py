"""Whether an object is as it would be applied."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tpu_operator.core.numbers import quantity
from tpu_operator.core.objects.matching import matches


@pytest.mark.parametrize(
    ("desired", "actual", "same"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {}, False),
        ({"a": {"b": 1}}, {"a": None}, False),
        ([1, 2], [1, 2], True),
        ([1, 2], [1, 2, 3], False),
        ([{"a": 1}], [{"a": 1, "b": 2}], True),
        ([1], "1", False),
    ],
)
def test_all_that_is_desired_has_to_be_there(desired: Any, actual: Any, same: bool) -> None:
    assert matches(desired, actual) is same


def test_items_with_a_key_may_have_company_in_any_order() -> None:
    desired = {"containers": [{"name": "a", "ports": [{"containerPort": 1}]}]}
    actual = {
        "containers": [{"name": "b"}, {"name": "a", "ports": [{"containerPort": 1, "protocol": "TCP"}]}]
    }
    assert matches(desired, actual)
    assert not matches(desired, {"containers": [{"name": "b"}]})


def test_ports_of_services_have_another_key() -> None:
    desired = {"ports": [{"port": 1, "targetPort": 2, "protocol": "TCP"}]}
    assert matches(desired, {"ports": [{"port": 9, "protocol": "TCP"}, *desired["ports"]]})
    assert not matches(desired, {"ports": [{"port": 1, "targetPort": 3, "protocol": "TCP"}]})


def test_amounts_are_the_same_however_they_are_written() -> None:
    assert matches(
        {"limits": {"cpu": "1000m", "memory": "0.5Gi"}}, {"limits": {"cpu": "1", "memory": "512Mi"}}
    )
    assert not matches({"requests": {"cpu": "1"}}, {"requests": {"cpu": "2"}})


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4", 4),
        (4, 4),
        ("500m", Decimal("0.5")),
        ("1.5Ki", 1536),
        ("2G", 2_000_000_000),
        ("1e3", 1000),
        ("250u", Decimal("0.00025")),
        ("1E", 10**18),
    ],
)
def test_quantities(text: str | int, amount: int | Decimal) -> None:
    assert quantity(text) == amount


@pytest.mark.parametrize("text", ["", "x", "1Q", "1mi", "--1", "1 Gi"])
def test_what_is_no_quantity(text: str) -> None:
    assert quantity(text) is None
