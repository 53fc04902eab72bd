"""A producer, and a member of a group, in a process of any version: only names of the public face.

`python FILE produce URI TOPIC FIRST OUT` sends numbers from FIRST on, `python FILE consume URI TOPIC GROUP OUT` polls.
Each writes a line of JSON to OUT for what is acknowledged, or for each record, and ends in order at SIGTERM.
"""

import json
import signal
import sys
import threading
import time

from lakelog import Consumer, Producer

PARTITIONS = 6
BATCH = 12  # numbers of a send
TIMEOUT_MS = 120_000
PAUSE = 0.5  # s

ending = threading.Event()


def produce(uri, topic, first, out):
    """A line has a partition, the offset of its first number, its numbers, and how long the send took, in seconds."""
    number = int(first)
    with open(out, "a", buffering=1) as lines, Producer(uri, acks="all") as producer:
        while not ending.wait(PAUSE):
            numbers, began = range(number, number + BATCH), time.monotonic()
            rows = [{"value": str(each), "partition": each % PARTITIONS} for each in numbers]
            answers = producer.send(topic, rows, TIMEOUT_MS)
            for partition, answer in answers.items():
                if answer.error is not None:
                    raise answer.error
                own = [each for each in numbers if each % PARTITIONS == partition]
                lines.write(json.dumps([partition, answer.base_offset, own, time.monotonic() - began]) + "\n")
            number += BATCH


def consume(uri, topic, group, out):
    """A line has a partition, an offset and a number."""
    with open(out, "a", buffering=1) as lines, Consumer(uri, group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while not ending.is_set():
            records = consumer.poll(0.5)
            columns = (records[name].to_pylist() for name in ("partition", "offset", "value"))
            for partition, offset, value in zip(*columns, strict=True):
                lines.write(json.dumps([partition, offset, int(value)]) + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    {"produce": produce, "consume": consume}[sys.argv[1]](*sys.argv[2:])
