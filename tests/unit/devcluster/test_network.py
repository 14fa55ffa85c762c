from __future__ import annotations

from ipaddress import IPv4Network
from itertools import islice

from hack.devcluster.network import LINKS, free_links


def networks(*texts: str) -> list[IPv4Network]:
    return [IPv4Network(text) for text in texts]


def test_first_link_of_an_idle_host() -> None:
    assert next(free_links([])) == ("tpudev0", IPv4Network("10.202.0.0/30"))


def test_links_of_other_clusters_are_passed_over() -> None:
    used = networks("10.202.0.0/30", "10.202.0.1/32", "10.202.1.0/30")
    assert next(free_links(used)) == ("tpudev2", IPv4Network("10.202.2.0/30"))


def test_wider_networks_of_the_host_are_passed_over() -> None:
    assert next(free_links(networks("10.202.0.0/18")))[0] == "tpudev64"
    assert not list(free_links(networks("10.0.0.0/8")))


def test_names_and_subnets_are_distinct_and_fit_an_interface_name() -> None:
    links = dict(islice(free_links([]), 1000))
    assert len(links) == len(set(links.values())) == 256
    assert all(len(name) <= 15 and subnet.subnet_of(LINKS) for name, subnet in links.items())
