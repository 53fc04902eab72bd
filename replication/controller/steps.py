"""The steps of a controller: reads, and commits under its controller epoch. Each is one read or one commit on one
table, unless its docstring says otherwise.

A commit raises ControllerMovedException once a newer controller has claimed its table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from lakelog.replication.controller.controller_context import BrokerView
from lakelog.replication.controller.decision import Decision
from lakelog.replication.protocol.admin_request import AdminRequest, Outcome
from lakelog.replication.protocol.entity import Entity
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds import carry_out
from lakelog.replication.protocol.topic import Topic

Partitions: TypeAlias = Mapping[TopicIdPartition, PartitionRegistration]


class ClaimTables(NamedTuple):
    """One commit on each table that a controller writes. After it no older controller can change them."""


class ReadTopics(NamedTuple):
    """A read, answered with the topics by name."""


class ReadConfigs(NamedTuple):
    """A read, answered with the settings of all entities."""


class ReadMetadata(NamedTuple):
    """A read, answered with the table's version and its partitions."""


class ReadBrokers(NamedTuple):
    """A read, answered with `BrokersSeen`. `newest`: brokers that have just registered must be among them."""

    newest: bool = False


class BrokersSeen(NamedTuple):
    """The live brokers, and the ids of all that have ever registered. `errors` has brokers' storage errors by id.
    `is_newest`: whether brokers that have just registered are among them."""

    live: Mapping[int, BrokerView]
    registered: frozenset[int] = frozenset()
    errors: Mapping[int, str] = {}
    is_newest: bool = True


class ReadRequests(NamedTuple):
    """A read of `admin`, answered with the waiting requests, oldest first. One commit refuses requests that cannot be
    carried out."""


class IsBalanceDue(NamedTuple):
    """In memory: whether it is time to check the balance of leaders."""


class SettleWhatHasLanded(NamedTuple):
    """A read and one commit on `admin`: answers the requests that the last controller has carried out."""


class TakeUpRequest(NamedTuple):
    """One commit on `admin`: the request is being decided. Answered with False if it timed out or was withdrawn."""

    request: AdminRequest


class BeginToApplyRequest(NamedTuple):
    """One commit on `admin`: the decision is being written. Answered with False if the request was withdrawn."""

    request: AdminRequest


class AnswerRequest(NamedTuple):
    """One commit on `admin`: the outcomes of a request."""

    request: AdminRequest
    outcomes: Mapping[str, Outcome]


class ChangeTopics(NamedTuple):
    """One commit on `topics`: adds or replaces some, and drops others by name."""

    put: Mapping[str, Topic]
    drop: Collection[str]
    why: str


class ChangeConfigs(NamedTuple):
    """One commit on `configs`."""

    put: Mapping[Entity, Mapping[str, str]]
    why: str


class ChangeMetadata(NamedTuple):
    """One compare-and-set on `metadata`, with all changes of an event. The commit names `request` and its outcomes.

    Each attempt calls `choose`, because leaders may have changed ISRs meanwhile. Its arguments are the partitions and,
    if an earlier attempt has landed, the outcomes of that attempt, else None. The answer: (1) the last decision chosen;
    (2) the version of its commit or, if nothing changes, the version it was decided on; (3) whether an earlier attempt
    has landed.
    """

    choose: Callable[[Partitions, Mapping[str, Outcome] | None], Decision]
    request: AdminRequest | None
    why: str


Step: TypeAlias = (
    ClaimTables | ReadTopics | ReadConfigs | ReadMetadata | ReadBrokers | ReadRequests | IsBalanceDue
    | SettleWhatHasLanded | TakeUpRequest | BeginToApplyRequest | AnswerRequest | ChangeTopics | ChangeConfigs
    | ChangeMetadata
)  # fmt: skip

Result = TypeVar("Result")
Round: TypeAlias = carry_out.Round[Step, Result]
