"""A real Kafka on this machine, for tests and benchmarks that compare. Its brokers are their own controllers.

Spark resolves its jars, as it does Delta's, unless LAKELOG_KAFKA_JARS names a folder that has them.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from lakelog.jobs.launch.delta_jars import resolve
from lakelog.jobs.launch.spark_submit import spark_home
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.verification.server_process import free_ports

VERSION = "4.3.1"
_PACKAGES = f"org.apache.kafka:kafka_2.13:{VERSION},org.apache.kafka:kafka-tools:{VERSION}"
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_SECONDS = 60.0  # for a start, and for each request
_CONSUME_SECONDS = 0.05  # it waits so long for the whole number of messages, also at the end
_QUICKLY = {"log.cleaner.backoff.ms": 100, "log.initial.task.delay.ms": 100, "group.initial.rebalance.delay.ms": 0}

_silent = logging.Logger("librdkafka")  # it complains of brokers that start or were stopped

Pair = tuple[bytes | None, bytes | None]  # key and value
Read = tuple[int, bytes | None, bytes | None]  # offset, key and value


class KafkaCluster:
    """Clients of the brokers that listen on these ports. `folder`: with the data of all brokers."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.folder = folder
        self._brokers = len(ports)
        self._clients: dict[str, str | int | float | bool] = {
            "bootstrap.servers": ",".join(f"localhost:{port}" for port in ports)
        }
        self._admin = AdminClient(self._clients, logger=_silent)

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, object]) -> None:
        """Makes a topic with a replica on each broker."""
        given = {name: str(value) for name, value in configs.items()}
        wanted = NewTopic(topic, partitions, self._brokers, config=given)
        self._admin.create_topics([wanted])[topic].result(_SECONDS)

    def alter_topic(self, topic: str, configs: Mapping[str, object]) -> None:
        """Changes settings of a topic."""
        entries = [
            ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(_SECONDS)

    def producer(self, **configs: str | int | bool) -> Producer:
        """An idempotent producer with acks=all."""
        return Producer({**self._clients, "enable.idempotence": True, **configs}, logger=_silent)

    def send(self, topic: str, records: Sequence[Pair], timestamp_ms: int) -> list[str]:
        """Sends records to partition 0 as one batch. Returns the names of the errors."""
        errors = list[str]()
        producer = self.producer(**{"linger.ms": 100})
        for key, value in records:
            producer.produce(
                topic, value, key, 0, timestamp=timestamp_ms,
                on_delivery=lambda error, _: errors.append(error.name()) if error else None,
            )  # fmt: skip
        producer.flush(_SECONDS)
        return errors

    def read(self, topic: str, partitions: int = 1) -> list[list[Read]]:
        """The records of each partition, from its start to its end."""
        consumer = Consumer(
            {**self._clients, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}, logger=_silent
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[list[Read]] = [[] for _ in range(partitions)]
        left, deadline = set(range(partitions)), time.monotonic() + _SECONDS
        while left and time.monotonic() < deadline:
            for each in consumer.consume(10_000, _CONSUME_SECONDS):
                number = each.partition() or 0
                if each.error() is None:
                    found[number].append((each.offset() or 0, each.key(), each.value()))
                else:  # the end is one, too
                    left.discard(number)
        consumer.close()
        return found

    def cleaned_to(self, topic: str) -> int:
        """The first offset of partition 0 that the log cleaner of the first broker has not been through."""
        file = self.folder / "1" / "cleaner-offset-checkpoint"
        lines = file.read_text().splitlines()[2:] if file.exists() else []
        return next((int(stop) for name, _, stop in map(str.split, lines) if name == topic), 0)


@contextmanager
def running_kafka(folder: Path, brokers: int = 1) -> Iterator[KafkaCluster]:
    """Starts brokers with their data in a folder, and stops them. Raises TimeoutError if they do not start, and
    InvalidConfigurationException if LAKELOG_KAFKA_JARS has no Kafka."""
    jars, found = _jars(folder), free_ports(2 * brokers)
    ports, quorums = found[:brokers], found[brokers:]
    with ExitStack() as servers:
        for number, port in enumerate(ports, 1):
            servers.enter_context(_running(folder, jars, number, port, quorums, brokers))
        for port in ports:
            _wait_for(port)
        yield KafkaCluster(folder, ports)


@contextmanager
def _running(
    folder: Path, jars: Path, number: int, port: int, quorums: Sequence[int], brokers: int
) -> Iterator[None]:  # fmt: skip
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": ",".join(f"{n}@localhost:{each}" for n, each in enumerate(quorums, 1)),
        "listeners": f"PLAINTEXT://localhost:{port},CONTROLLER://localhost:{quorums[number - 1]}",
        "advertised.listeners": f"PLAINTEXT://localhost:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder / str(number),
        "offsets.topic.replication.factor": brokers,
        "min.insync.replicas": brokers // 2 + 1,
        **_QUICKLY,
    }
    properties = folder / f"server-{number}.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = ["java", "-Xmx512m", "-cp", f"{jars}/*:{spark_home()}/jars/*"]  # what Spark has, it does not resolve
    format_it = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)]
    subprocess.run(format_it, check=True, capture_output=True, timeout=2 * _SECONDS)
    with (folder / f"kafka-{number}.log").open("w") as log:
        server = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
    try:
        yield
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    deadline, pause = time.monotonic() + _SECONDS, threading.Event()
    while time.monotonic() < deadline:
        with suppress(OSError):
            socket.create_connection(("localhost", port), 1).close()
            return
        pause.wait(0.1)
    raise TimeoutError(f"Kafka does not listen on port {port}")


def _jars(folder: Path) -> Path:
    if given := os.environ.get("LAKELOG_KAFKA_JARS"):
        if not any(Path(given).glob("*kafka_2.13*.jar")):
            raise InvalidConfigurationException(
                f"LAKELOG_KAFKA_JARS is {given!r}; allowed: a folder with the jars of Kafka {VERSION}"
            )
        return Path(given)
    return resolve(_PACKAGES, folder / "ivy")[0].parent
