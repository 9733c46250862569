"""A sweep on a cluster of two nodes, one of which is lost while it works."""

import dataclasses
import ipaddress
import os
import threading
import time

import psutil
import pytest

from hf_memory.experiments.results import cell_path, read_rows
from hf_memory.studies.ray import RayWorkers
from tests.studies.sweep_examples import planned, tiny_recipe

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture
def cluster(monkeypatch):
    """A head without work and two nodes with a CPU each, as processes of this machine."""
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    # Workers import the tests' modules as this process does.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    opened = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [opened.add_node(num_cpus=1) for _ in range(2)]
        ray.init(address=opened.address, log_to_driver=False)
        yield opened, nodes
    finally:
        ray.shutdown()
        opened.shutdown()


@pytest.mark.timeout(180)
def test_a_lost_node_costs_no_cell_and_no_row(cluster, tmp_path):
    opened, nodes = cluster
    cells = planned(tiny_recipe(arms={"lstm": {}}, learning_rates=[1e-3, 2e-3, 4e-3]))
    cells = [dataclasses.replace(cell, training={**cell.training, "steps": 300}) for cell in cells]
    lost = threading.Event()

    def lose_a_node():
        """End one node once both are at work."""
        while len(list(tmp_path.glob("*.lock"))) < 2:
            time.sleep(0.05)
        time.sleep(0.5)
        opened.remove_node(nodes[1], allow_graceful=False)
        lost.set()

    thread = threading.Thread(target=lose_a_node, daemon=True)
    thread.start()
    found = []
    with RayWorkers() as pool:
        assert pool.size == 2
        pool.run([(cell,) for cell in cells], tmp_path, lambda *ended: found.append(ended[:3]))
    assert lost.is_set()
    assert sorted(cell.digest for cell, _, _ in found) == sorted(cell.digest for cell in cells)
    # A process that outlives its node may end its cell, which the second start then finds.
    assert {outcome for _, outcome, _ in found} <= {"trained", "finished before"}
    assert all(len(read_rows(cell_path(tmp_path, cell.digest))) == 3 for cell in cells)
    assert not list(tmp_path.glob("*.lock"))


def listeners() -> dict[str, set[str]]:
    """Addresses on which this process and those that it started wait for connections, by their names."""
    found: dict[str, set[str]] = {}
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        own = {item.laddr.ip for item in process.net_connections("inet") if item.status == psutil.CONN_LISTEN}
        if own:
            found.setdefault(process.name(), set()).update(own)
    return found


def is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


@pytest.mark.timeout(180)
def test_a_cluster_that_is_started_here_listens_on_the_loopback_address_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    before = listeners()
    cell = planned(tiny_recipe(arms={"lstm": {}}))[0]
    with RayWorkers(1) as pool:
        pool.run([(cell,)], tmp_path, lambda *ended: None)
        during = listeners()
    assert len(read_rows(cell_path(tmp_path, cell.digest))) == 3
    assert {"gcs_server", "raylet"} <= during.keys() - before.keys()
    assert [(name, address) for name, found in during.items() for address in found if not is_loopback(address)] == []
