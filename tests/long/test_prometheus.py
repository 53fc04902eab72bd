"""Prometheus itself, with our rules and our board: it loads them, and an alert comes and goes with what it is about.

It takes `prometheus` and `promtool` from the PATH, or else from Debian's package, which apt-get downloads.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.clusters.process_cluster import SMALL
from lakelog.verification.server_process import ServerProcess, free_ports

CONF = Path(__file__).resolve().parents[2] / "conf"
RULES = CONF / "lakelog-alerts.yml"
SECONDS = 300.0
NAMES = ("prometheus", "promtool")


class Prometheus:
    """A running server of Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **words: str) -> Any:
        with urlopen(f"{self._url}{path}?{urlencode(words)}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def is_there(self) -> bool:
        try:
            return bool(self.ask("status/buildinfo"))
        except URLError:
            return False

    def health(self) -> dict[str, str]:
        """The health of each target, by its job."""
        return {target["labels"]["job"]: target["health"] for target in self.ask("targets")["activeTargets"]}

    def firing(self) -> dict[str, dict[str, str]]:
        """The texts of the alerts that fire, by their names."""
        alerts = [alert for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"]
        return {alert["labels"]["alertname"]: alert["annotations"] for alert in alerts}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def tools(folder: Path) -> dict[str, str]:
    """The paths of the programs."""
    installed = {name: shutil.which(name) for name in NAMES}
    if all(installed.values()):
        return {name: str(path) for name, path in installed.items()}
    subprocess.run(["apt-get", "download", "prometheus"], check=True, cwd=folder)
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(folder / "package")], check=True)
    return {name: str(folder / "package" / "usr" / "bin" / name) for name in NAMES}


@contextmanager
def running(name: str, folder: Path, *words: str) -> Iterator[ServerProcess]:
    process = ServerProcess(name, words, folder / f"{name}.log")
    process.start()
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def prometheus(tools: dict[str, str], folder: Path, port: int, targets: dict[str, int]) -> Iterator[Prometheus]:
    """The server, with rules that wait for a second only."""
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"] if "for" in rule):
        rule["for"] = "1s"
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
            for name, target in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    subprocess.run([tools["promtool"], "check", "config", str(folder / "prometheus.yml")], check=True)
    words = ("--config.file", str(folder / "prometheus.yml"), "--storage.tsdb.path", str(folder / "data"))
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(
            [tools["prometheus"], *words, "--web.listen-address", f"127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        found = Prometheus(port)
        wait_until(found.is_there, "Prometheus listens", SECONDS)
        yield found
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def cluster(folder: Path, tools: dict[str, str]) -> Iterator[tuple[Prometheus, ServerProcess]]:
    """A controller, a broker and the exporter as processes, and Prometheus, which scrapes all three."""
    uri = str(folder / "cluster")
    format_cluster(StorageRoot.of(uri), Config())
    port, *ports = free_ports(4)
    targets = dict(zip(("exporter", "controller", "broker"), ports, strict=True))
    own = {name: ("--cluster", uri, "--metrics-port", str(targets[name])) for name in ("controller", "broker")}
    of_broker = ("broker", *SMALL, *own["broker"], "--root", str(folder / "broker"), "--broker-id", "1")
    listen = ("--listen", f"127.0.0.1:{targets['exporter']}")
    with (
        running("controller", folder, "controller", *own["controller"]),
        running("broker", folder, *of_broker) as broker,
        running("exporter", folder, "exporter", "--cluster", uri, *listen),
        prometheus(tools, folder, port, targets) as found,
    ):
        wait_until(lambda: found.health() == dict.fromkeys(targets, "up"), "all targets are up", SECONDS)
        yield found, broker


def test_promtool_accepts_the_rules(tools: dict[str, str]) -> None:
    done = subprocess.run(
        [tools["promtool"], "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count = sum(len(group["rules"]) for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"])
    assert f"SUCCESS: {count} rules found" in done.stdout


def test_a_broker_that_is_killed_fires_an_alert_which_ends_when_it_is_back(
    cluster: tuple[Prometheus, ServerProcess],
) -> None:
    found, broker = cluster

    def alive() -> list[str]:
        return [each["value"][1] for each in found.ask("query", query="lakelog_broker_alive")["result"]]

    wait_until(lambda: alive() == ["1"] and "BrokerDown" not in found.firing(), "the broker is alive", SECONDS)
    broker.kill()
    wait_until(lambda: "BrokerDown" in found.firing(), "the alert fires", SECONDS)
    assert found.firing()["BrokerDown"]["summary"].startswith("Broker 1 ")
    assert found.health() == {"exporter": "up", "controller": "up", "broker": "down"}
    broker.start()
    wait_until(lambda: "BrokerDown" not in found.firing(), "the alert ends", SECONDS)
    assert alive() == ["1"]


def test_prometheus_understands_each_expression_of_the_board(cluster: tuple[Prometheus, ServerProcess]) -> None:
    found, _ = cluster
    board = json.loads((CONF / "lakelog-dashboard.json").read_text("utf-8"))
    expressions = {target["expr"] for panel in board["panels"] for target in panel["targets"]}
    # There is one cluster root and no topic, no request went to an object store, and no follower has a micro-batch.
    empty = ("cluster_root", "chain_equal", "micro_batch", "request_seconds")

    def all_found() -> bool:
        asked = {each: found.ask("query", query=each.replace("$namespace", ".*"))["result"] for each in expressions}
        return not [each for each, result in asked.items() if not result and not any(name in each for name in empty)]

    wait_until(all_found, "each expression finds something, once Spark has started again", SECONDS)
    rates = found.ask("query", query="sum(rate(process_cpu_seconds_total[1m]))")["result"]
    assert float(rates[0]["value"][1]) > 0
