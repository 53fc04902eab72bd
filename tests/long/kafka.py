"""A real Kafka on this machine, for tests that compare. Spark resolves its jars, as it does Delta's, unless
LAKELOG_KAFKA_JARS names a folder that has them."""

import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from lakelog.jobs.launch.delta_jars import resolve
from tests.processes import free_ports, wait_until

VERSION = "4.3.1"
_PACKAGES = f"org.apache.kafka:kafka_2.13:{VERSION},org.apache.kafka:kafka-tools:{VERSION}"
_PATIENCE = 60.0  # s


class Kafka:
    """One broker, which is its own controller, and clients of it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.address = folder, f"localhost:{port}"
        self._clients = {"bootstrap.servers": self.address}
        self._admin = AdminClient(self._clients)

    def create_topic(self, topic: str, configs: dict[str, object]) -> None:
        """Makes a topic of one partition."""
        given = {name: str(value) for name, value in configs.items()}
        self._admin.create_topics([NewTopic(topic, 1, 1, config=given)])[topic].result(_PATIENCE)

    def alter_topic(self, topic: str, configs: dict[str, object]) -> None:
        """Replaces the settings of a topic."""
        given = {name: str(value) for name, value in configs.items()}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in given.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(_PATIENCE)

    def send(self, topic: str, records: list[tuple[bytes | None, bytes | None]], timestamp_ms: int) -> list[str]:
        """Sends records as one batch. Returns the names of the errors."""
        errors = list[str]()
        producer = Producer({**self._clients, "linger.ms": 100, "enable.idempotence": True})
        for key, value in records:
            producer.produce(
                topic, value, key, 0, timestamp=timestamp_ms,
                on_delivery=lambda error, _: errors.append(error.name()) if error else None,
            )  # fmt: skip
        assert producer.flush(_PATIENCE) == 0
        return errors

    def read(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """The records of a topic, from its start to its end: offset, key and value."""
        consumer = Consumer({**self._clients, "group.id": uuid.uuid4().hex, "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = list[tuple[int, bytes | None, bytes | None]]()
        while (message := consumer.poll(_PATIENCE)) is not None and message.error() is None:
            found.append((message.offset(), message.key(), message.value()))
        consumer.close()
        assert message is not None
        return found

    def cleaned_to(self, topic: str) -> int:
        """The first offset that the log cleaner has not been through; 0 before it has been at work."""
        file = self.folder / "data" / "cleaner-offset-checkpoint"
        lines = file.read_text().splitlines()[2:] if file.exists() else []
        return next((int(line.split()[2]) for line in lines if line.split()[0] == topic), 0)


@contextmanager
def running_kafka(folder: Path) -> Iterator[Kafka]:
    """Starts a Kafka with its data in a folder, and stops it."""
    jars, (port, quorum) = _jars(folder), free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@localhost:{quorum}",
        "listeners": f"PLAINTEXT://localhost:{port},CONTROLLER://localhost:{quorum}",
        "advertised.listeners": f"PLAINTEXT://localhost:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "log.cleaner.backoff.ms": 100,
        "log.initial.task.delay.ms": 100,
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = ["java", "-Xmx512m", "-cp", f"{jars}/*"]
    cluster = "AAAAAAAAAAAAAAAAAAAAAA"
    format_it = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
    subprocess.run(format_it, check=True, capture_output=True, timeout=120)
    with (folder / "kafka.log").open("w") as log:
        server = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
    try:
        wait_until(lambda: _listens(port), "Kafka listens", _PATIENCE)
        yield Kafka(folder, port)
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), 2).close()
    except OSError:
        return False
    return True


def _jars(folder: Path) -> Path:
    if given := os.environ.get("LAKELOG_KAFKA_JARS"):
        return Path(given)
    found = folder / "jars"
    found.mkdir()
    for jar in resolve(_PACKAGES, folder / "ivy"):
        shutil.move(jar, found)
    return found
