"""Strategies for specs of TPUJobs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tpu_operator.catalog import GENERATIONS, CatalogError, resolve


def _shapes(max_hosts: int) -> list[dict[str, Any]]:
    """All that the catalog offers by name with at most so many hosts."""
    found = []
    for generation in GENERATIONS:
        for topology in generation.topologies:
            for chips in (None, 4, 8):
                try:
                    shape = resolve(generation.name, topology, chips)
                except CatalogError:
                    continue
                if shape.hosts <= max_hosts:
                    tpu = {"accelerator": generation.name, "topology": topology, "chipsPerHost": chips}
                    found.append({key: value for key, value in tpu.items() if value is not None})
    return found


HEAD = {"spec": {"containers": [{"name": "driver", "image": "driver"}]}}
ACTIONS = st.sampled_from(["Restart", "RestartUncounted", "FailJob", "Ignore"])
CONDITIONS = st.sampled_from(
    [
        {"onExitCodes": [3]},
        {"onCauses": ["PodDeleted"]},
        {"onCauses": ["Preempted", "Evicted"]},
        {"onCauses": ["UserError"]},
        {"onCauses": ["UserError"], "onExitCodes": [1]},
        {"onCauses": ["NodeLost", "Hang"]},
        {"onMessage": "out of range"},
    ]
)
AT_ODDS = [
    {"onExitCodes": [1, 3], "action": "FailJob"},
    {"onCauses": ["UserError"], "action": "RestartUncounted"},
]
"""Which of them comes first makes a difference."""
RULES = st.one_of(
    st.lists(
        st.builds(lambda condition, action: condition | {"action": action}, CONDITIONS, ACTIONS), max_size=3
    ),
    st.permutations(AT_ODDS),
)


def tpus(max_hosts: int = 4, max_slices: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """TPUs in slices of at most so many hosts."""
    return st.builds(
        lambda tpu, slices, spares: tpu | {"slices": slices, "spareSlices": spares},
        st.sampled_from(_shapes(max_hosts)),
        st.integers(1, max_slices),
        st.sampled_from([0, 0, 1, 2]),
    )


def policies() -> st.SearchStrategy[dict[str, Any]]:
    """Failure policies."""
    return st.fixed_dictionaries(
        {
            "maxRestarts": st.sampled_from([1, 0, 3]),
            "restartScope": st.sampled_from(["Job", "Slice"]),
            "restartStrategy": st.sampled_from(["Recreate", "InPlace"]),
            "coalesceSeconds": st.sampled_from([0, 10]),
            "rules": RULES,
        }
    )


def specs(max_hosts: int = 4, max_slices: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """Specs of jobs, in their wire form."""
    return st.fixed_dictionaries(
        {
            "tpu": tpus(max_hosts, max_slices),
            "run": st.fixed_dictionaries(
                {
                    "command": st.just(["python", "train.py"]),
                    "launcher": st.sampled_from(["torchrun", "jax", "none", "ray"]),
                }
            ),
            "failurePolicy": policies(),
            "successPolicy": st.sampled_from(["All", "Leader"]),
            "suspend": st.integers(0, 7).map(lambda n: n == 7),
        },
        optional={
            "head": st.just(HEAD),
            "activeDeadlineSeconds": st.just(60),
            "startupTimeoutSeconds": st.sampled_from([5, 120]),
            "ttlSecondsAfterFinished": st.sampled_from([0, 60]),
        },
    )
