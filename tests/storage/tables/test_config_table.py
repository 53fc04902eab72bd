"""The brokers' settings in the cluster, and who may write them."""

import pytest

from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.protocol.topic import Entity
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.config_table import ConfigTable

ONE, ALL = Entity("brokers", "1"), Entity("brokers", "<default>")
CAUSE = {"who": "test"}


@pytest.fixture
def table(root):
    return ConfigTable.create(StorageRoot.of(root))


def test_th_02_what_a_broker_has_of_its_own_goes_before_what_holds_for_all(root, table):
    assert table.of_broker(1) == {}
    table.change({ALL: {"a": "1", "b": "1"}, ONE: {"b": "2"}}, CAUSE)
    other = ConfigTable.open(StorageRoot.of(root))
    assert (other.of_broker(1), other.of_broker(2)) == ({"a": "1", "b": "2"}, {"a": "1", "b": "1"})


def test_th_02_settings_are_replaced_and_an_entity_without_any_has_no_row(table):
    table.change({ALL: {"a": "1"}, ONE: {"b": "2"}}, CAUSE)
    table.change({ONE: {"c": "3"}}, CAUSE)
    assert table.configs == {ALL: {"a": "1"}, ONE: {"c": "3"}}
    table.change({ONE: {}}, CAUSE)
    assert table.configs == {ALL: {"a": "1"}}


def test_what_is_as_it_is_to_be_is_not_written_again(root, table):
    table.change({ONE: {"b": "2"}}, CAUSE)
    before = last_version(StorageRoot.of(root).child("configs"))
    table.change({ONE: {"b": "2"}, ALL: {}}, CAUSE)
    assert last_version(StorageRoot.of(root).child("configs")) == before


def test_ce_05_a_controller_that_was_deposed_changes_no_settings(root, table):
    table.claim(1)
    table.change({ONE: {"b": "2"}}, CAUSE, controller_epoch=1)
    newer = ConfigTable.open(StorageRoot.of(root))
    newer.claim(2)
    with pytest.raises(ControllerMovedException, match="configs: controller epoch 1 is over"):
        table.change({ONE: {"b": "3"}}, CAUSE, controller_epoch=1)
    newer.refresh()
    assert newer.of_broker(1) == {"b": "2"}


def test_mc_01_a_reader_finds_out_that_settings_have_changed(root, table):
    reader = ConfigTable.open(StorageRoot.of(root))
    assert not reader.refresh()
    table.change({ONE: {"b": "2"}}, CAUSE)
    assert reader.refresh()
    assert reader.of_broker(1) == {"b": "2"}
