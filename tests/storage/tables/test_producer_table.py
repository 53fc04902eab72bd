"""Producer names: who has a name, and when it expires."""

import pytest

from lakelog.replication.errors import ProducerFencedException
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.producer_table import ProducerTable
from tests.storage.delta.answers import lose_an_answer

HOUR = 3_600_000


@pytest.fixture
def storage(root):
    return StorageRoot.of(root)


@pytest.fixture
def table(storage):
    return ProducerTable.create(storage)


def looks(table, *hours, seen=None):
    """A controller looks, these hours after its last poll each time. Returns the last rows. Names expire in 3 hours."""
    seen = seen or {}
    for passed in hours:
        seen = table.expire(seen, passed * HOUR, 3 * HOUR, {"who": "controller"})
    return seen


def idle(table):
    table.refresh()
    return {row["name"]: row["idle_ms"] for row in table.rows}


def test_kip_98_epochs_of_a_producer_rise(storage, table):
    first, again, other = (
        table.init_producer("a", "one"),
        ProducerTable.open(storage).init_producer("a", "two"),
        table.init_producer("b", "three"),
    )
    assert (first.producer_epoch, again.producer_epoch, other.producer_epoch) == (0, 1, 0)
    assert first.producer_id == again.producer_id != other.producer_id


@pytest.mark.parametrize("landed", [True, False])
def test_kip_98_an_epoch_whose_answer_is_lost_is_given_once(storage, table, monkeypatch, landed):
    lose_an_answer(monkeypatch, landed=landed)
    given = table.init_producer("a", "one")
    assert given.producer_epoch == 0
    assert ProducerTable.open(storage).init_producer("a", "two") == given._replace(producer_epoch=1)


def test_kip_360_a_producer_renews_its_epoch_as_long_as_it_has_the_name(table):
    """Otherwise two producers of one name would fence each other in turn."""
    first = table.init_producer("a", "one")
    assert table.renew("a", "one") == first._replace(producer_epoch=1)
    second = table.init_producer("a", "two")
    with pytest.raises(ProducerFencedException, match="another producer has been started under the name a"):
        table.renew("a", "one")
    assert table.renew("a", "two") == second._replace(producer_epoch=3)


def test_ap_06_a_name_that_nobody_uses_expires(storage, table):
    """It expires by the time that controllers saw it unused. No clocks are compared."""
    table.init_producer("a", "one")
    looks(table, 9, 1, 1)
    assert idle(table) == {"a": 2 * HOUR}, "what came before the first poll is not known"
    looks(ProducerTable.open(storage), 9, 1)
    assert idle(table) == {}


def test_ap_06_a_name_that_is_used_does_not_expire(table):
    table.init_producer("a", "one")
    seen = looks(table, 0, 2)
    table.renew("a", "one")
    seen = looks(table, 2, seen=seen)
    assert idle(table) == {"a": 0}, "it was used at some time between the polls"
    looks(table, 2, seen=seen)
    assert idle(table) == {"a": 2 * HOUR}


def test_ap_06_a_name_that_is_used_while_it_expires_stays(storage, table, monkeypatch):
    """The controller's commit loses, and is decided again."""
    table.init_producer("a", "one")
    seen, producer, update, renewed = looks(table, 0), ProducerTable.open(storage), table.update, []

    def overtaken(cause, change):
        def decided_late(rows):
            if not renewed:
                renewed.append(producer.renew("a", "one"))
            return change(rows)

        return update(cause, decided_late)

    monkeypatch.setattr(table, "update", overtaken)
    looks(table, 9, seen=seen)
    assert renewed
    assert idle(table) == {"a": 0}


def test_ap_06_a_name_that_has_expired_is_given_anew(table):
    first = table.init_producer("a", "one")
    looks(table, 0, 9)
    again = table.renew("a", "one")
    assert again.producer_epoch == 0
    assert again.producer_id != first.producer_id, "its log may remember later sequences of the other"
    looks(table, 0, 9)
    table.init_producer("a", "two")
    with pytest.raises(ProducerFencedException):
        table.renew("a", "one")


def test_without_names_nothing_is_written(storage, table):
    version = last_version(storage.child("producers"))
    looks(table, 0, 9, 9)
    assert last_version(storage.child("producers")) == version
