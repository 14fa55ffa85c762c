"""A job over two slices, on real kubelets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from tests.e2e.kube import ROOT

if TYPE_CHECKING:
    from tests.e2e.kube import Kube


def test_jax_adds_up_over_both_slices(kube: Kube, two_slices: None) -> None:
    kube.apply(yaml.safe_load((ROOT / "examples" / "jax-multislice.yaml").read_text()))
    status = kube.finish("jax-multislice", 300)
    assert status["phase"] == "Succeeded", status
    assert {each["nodePool"] for each in status["slices"]} == {"half-0", "half-1"}
    for host in range(4):
        log = kube.logs(f"jax-multislice-{host // 2}-{host % 2}")
        # Not a line of its own for sure: Gloo writes to the same stream.
        assert f"host {host} of 4, slice {host // 2}: psum over 16 chips = 40\n" in log
