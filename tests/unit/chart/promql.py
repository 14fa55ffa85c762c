"""Queries against what is exposed: which labels they match, group by and result in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    VectorSelector,
    parse,
)

from tests.unit.chart.exposed import VALUES

if TYPE_CHECKING:
    from promql_parser import Matcher

    from tests.unit.chart.exposed import Exposed

Labels = frozenset[str]
NAMES = re.compile(r"\w+(\|\w+)*")
"""A regular expression that is a list of names."""


def labels(query: str, exposed: Exposed) -> Labels:
    """Labels of a query's result.

    Raises:
        AssertionError: it asks for something that is not there.
    """
    return _labels(parse(query), exposed)


def names(query: str, exposed: Exposed) -> set[str]:
    """Names of the samples that a query asks for."""
    return {name for name in exposed if re.search(rf"\b{name}\b", query)}


def _labels(expr: Expr, exposed: Exposed) -> Labels:
    match expr:
        case VectorSelector():
            return _selected(expr, exposed)
        case MatrixSelector():
            return _selected(expr.vector_selector, exposed)
        case ParenExpr():
            return _labels(expr.expr, exposed)
        case Call():
            return _called(expr, exposed)
        case AggregateExpr():
            return _aggregated(expr, exposed)
        case BinaryExpr():
            return _combined(expr, exposed)
    raise AssertionError(f"a kind of expression that no query has had yet: {expr}")


def _selected(selector: VectorSelector, exposed: Exposed) -> Labels:
    name = selector.name or ""
    assert name in exposed, f"nothing exposes {name}"
    for matcher in selector.matchers.matchers:
        assert matcher.name in exposed[name], f"{name} has no label {matcher.name}"
        _check_values(name, matcher)
    return exposed[name]


def _check_values(name: str, matcher: Matcher) -> None:
    known = VALUES.get((name, matcher.name))
    if known is None:
        return
    assert NAMES.fullmatch(matcher.value), f"{name}: {matcher.name} is no list of names: {matcher.value}"
    unknown = set(matcher.value.split("|")) - known
    assert not unknown, f"{name}: {matcher.name} is never {unknown}"


def _called(call: Call, exposed: Exposed) -> Labels:
    vectors = [each for each in call.args if not isinstance(each, NumberLiteral)]
    (found,) = (_labels(each, exposed) for each in vectors)
    if call.func.name == "histogram_quantile":
        assert "le" in found, "histogram_quantile needs the label le"
        return found - {"le"}
    return frozenset() if call.func.name == "absent" else found


def _aggregated(aggregate: AggregateExpr, exposed: Exposed) -> Labels:
    found = _labels(aggregate.expr, exposed)
    if aggregate.param is not None:  # topk and its like keep all labels
        return found
    if aggregate.modifier is None:
        return frozenset()
    assert aggregate.modifier.type == AggModifierType.By
    by = frozenset(aggregate.modifier.labels)
    assert by <= found, f"grouped by {by - found}, which nothing has"
    return by


def _combined(binary: BinaryExpr, exposed: Exposed) -> Labels:
    sides = [each for each in (binary.lhs, binary.rhs) if not isinstance(each, NumberLiteral)]
    found = [_labels(each, exposed) for each in sides]
    assert len(set(found)) == 1, f"the sides have different labels, and never match: {found}"
    return found[0]
