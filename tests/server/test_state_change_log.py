"""A broker's log lines about changed roles and ISRs: one line each time, for any number of partitions."""

import dataclasses
import logging

import pytest

from lakelog.replication.protocol.isr import AlterIsrOutcome
from lakelog.replication.protocol.partition_log import FENCED, FOLLOWER, LEADER, Role
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.server.replica_manager import log_isr_changes, log_roles
from tests.storage.logs import P0, P1

LED = PartitionRegistration("flights", "flights-id", 0, (1, 2), 1, 0, (1, 2))


@pytest.fixture
def lines(caplog):
    """All log lines so far."""
    caplog.set_level(logging.INFO, "lakelog.replication.server.replica_manager")
    return lambda: caplog.messages


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({}, []),
        ({P0: Role(0, LEADER)}, ["broker 1: partitions with a new role: 1 (leader of 1)"]),
        (
            {P0: Role(0, LEADER), P1: Role(0, FOLLOWER)},
            ["broker 1: partitions with a new role: 2 (follower of 1, leader of 1)"],
        ),
        (dict.fromkeys((P0, P1), Role(3, FENCED)), ["broker 1: partitions with a new role: 2 (fenced of 2)"]),
    ],
)
def test_bl_12_new_roles_are_logged_in_one_line(lines, roles, said):
    log_roles(1, roles, {})
    assert lines() == said


@pytest.mark.parametrize(
    ("outcome", "isr", "said"),
    [
        (AlterIsrOutcome.APPLIED, (1,), ["broker 1: broker 2 leaves 1 ISR (flights-0)"]),
        (AlterIsrOutcome.FOUND, (1,), ["broker 1: broker 2 leaves 1 ISR (flights-0)"]),
        (AlterIsrOutcome.LOST, (1, 2), []),
    ],
)
def test_bl_12_isr_changes_of_a_leader_are_logged_in_one_line(lines, outcome, isr, said):
    log_isr_changes(1, {P0: (outcome, dataclasses.replace(LED, isr=isr))}, {P0: LED})
    assert lines() == said


def test_bl_12_a_deleted_partition_is_not_logged_as_a_change(lines):
    log_isr_changes(1, {P0: (AlterIsrOutcome.LOST, None)}, {P0: LED})
    assert lines() == []
