"""The controller expires the names of producers."""

import pytest

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.storage.tables.producer_table import ProducerTable
from tests.controller.world import World

HOUR, WEEK = 3600, 7 * 24 * 3600


@pytest.fixture
def world(root):
    made = World(root)
    made.controller.poll()
    return made


def start(world, name):
    return world.cluster.producers.init_producer(name, "owner")


def is_known(world, name, given):
    """Whether a producer that starts under the name continues the earlier id and epoch."""
    return start(world, name).producer_id == given.producer_id


def test_ap_06_a_name_expires_after_a_week(world):
    given = start(world, "importer")
    world.poll(1, 2, 3, after=HOUR)
    world.poll(1, 2, 3, after=WEEK - 1)
    assert is_known(world, "importer", given)
    world.poll(1, 2, 3, after=HOUR)
    world.poll(1, 2, 3, after=WEEK)
    assert not is_known(world, "importer", given)


def test_ap_06_the_next_controller_goes_on_from_what_the_last_one_saw(world):
    given = start(world, "importer")
    world.poll(1, 2, 3, after=HOUR)
    world.poll(1, 2, 3, after=WEEK - HOUR)
    world.fail_over()
    world.poll(1, 2, 3, after=HOUR)
    world.poll(1, 2, 3, after=HOUR)
    assert not is_known(world, "importer", given)


def test_ap_06_a_failed_removal_of_names_delays_no_other_work(world, monkeypatch, caplog):
    def refuse(*_):
        raise KafkaStorageException("503")

    given = start(world, "importer")
    world.poll(1, 2, 3, after=HOUR)
    with monkeypatch.context() as patched:
        patched.setattr(ProducerTable, "expire", refuse)
        world.poll(1, 2, 3, after=WEEK - HOUR)
    assert "names of producers that nobody uses stay for now: 503" in caplog.text
    world.poll(1, 2, 3, after=HOUR)
    assert not is_known(world, "importer", given), "the time of the poll that failed counts"


def test_ap_06_names_are_checked_once_an_hour(world, monkeypatch):
    looks = []
    monkeypatch.setattr(ProducerTable, "expire", lambda *_: looks.append(1) or {})
    for after in (HOUR - 1, 1, 1, HOUR - 1):
        world.poll(1, 2, 3, after=after)
    assert len(looks) == 2
