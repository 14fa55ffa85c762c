"""The real libtpu, without chips: it can be asked, and has nothing to say."""

from __future__ import annotations

import os
import subprocess

from tests.torchtpu.hosts import PYTHON
from tests.unit.runtime.harness import RUNTIME

ASK = """
from libtpu.sdk import tpumonitoring
from tpu_runtime import libtpu

print(sorted(set(libtpu.METRICS) - set(tpumonitoring.list_supported_metrics())))
print([name for name in libtpu.METRICS if not tpumonitoring.get_metric(name).description()])
print(repr("".join(libtpu.text(tpumonitoring))))
"""


def test_all_that_it_is_asked_for_is_known_to_it() -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(RUNTIME), "TPU_SKIP_MDS_QUERY": "true"}
    done = subprocess.run(
        [PYTHON, "-c", ASK], env=env, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n[]\n''\n"
