"""What is kept of objects."""

from __future__ import annotations

import msgspec

from tpu_operator.core.snapshot import Custom, Node, Pod

LABELS = {"team": "a", "tpu-operator.dev/job": "train", "kueue.x-k8s.io/priority-class": "high"}


def wire(**more: object) -> bytes:
    return msgspec.json.encode({"metadata": {"name": "train", "labels": LABELS}, **more})


def test_labels_that_no_decision_reads_are_not_kept() -> None:
    """A user may put a megabyte of them into each of a thousand pods."""
    pod, job = msgspec.json.decode(wire(), type=Pod), msgspec.json.decode(wire(), type=Custom)
    for metadata in (pod.metadata, job.metadata):
        assert set(metadata.labels) == {"tpu-operator.dev/job", "kueue.x-k8s.io/priority-class"}
    assert msgspec.json.decode(wire(), type=Node).metadata.labels == LABELS


def test_a_spec_is_kept_as_it_came_and_keeps_nothing_else() -> None:
    spec = {"tpu": {"accelerator": "v5e"}, "template": {"spec": {"x": [1, 2, 3]}}}
    answer = bytearray(wire(spec=spec, rest="x" * 1000))
    job = msgspec.json.decode(answer, type=Custom)
    answer.clear()
    assert msgspec.json.decode(job.spec) == spec
    assert job.tpu == {"accelerator": "v5e"}
    for odd in (None, 5, {"tpu": None}, {"tpu": 5}):
        assert msgspec.json.decode(wire(spec=odd), type=Custom).tpu == {}
