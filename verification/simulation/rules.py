"""The rules of a history: the shipped ones, unless a sabotage has replaced one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakelog.replication.controller.decide import decide
from lakelog.replication.controller.term import ControllerTerm
from lakelog.replication.protocol import isr, leadership
from lakelog.replication.protocol.append import check_follower_append, place
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.log_retention import delete_records_offset
from lakelog.replication.protocol.replica_rows import replica_row
from lakelog.replication.protocol.rounds.acknowledge_round import send_and_acknowledge
from lakelog.replication.protocol.rounds.fetch_round import FetchRound, FetchRules
from lakelog.replication.protocol.rounds.leader_round import LeaderRound, LeaderRules
from lakelog.replication.protocol.rounds.role_round import RoleRules
from lakelog.replication.protocol.rounds.send_round import SendRules
from lakelog.replication.protocol.truncation import check_truncation

Rule = Callable[..., Any]


@dataclass(frozen=True)
class Rules(RoleRules, LeaderRules, FetchRules, SendRules):
    """One field a rule, so that a sabotage can replace it; see `sabotage`. The rules of rounds are inherited.

    The last four are not functions of the protocol but duties of its users: stop at a higher claim; after a commit
    without an answer, ask for its outcome; end a fetcher's round before its partitions get another role; claim a
    controller's tables before reading them. `decide` stands for all rules of the controller; a sabotage replaces one of
    them while it runs.
    """

    host: Rule = leadership.host
    alter_partition: Rule = isr.alter_partition
    check_follower_append: Rule = check_follower_append
    check_truncation: Rule = check_truncation
    place: Rule = place
    link: Rule = linked
    delete_records_offset: Rule = delete_records_offset
    replica_row: Rule = replica_row
    decide: Rule = decide
    leader_round: Callable[..., LeaderRound] = LeaderRound
    fetch_round: Callable[..., FetchRound] = FetchRound
    send_and_acknowledge: Rule = send_and_acknowledge
    term: Callable[..., ControllerTerm] = ControllerTerm
    claims_are_checked: bool = True
    unknown_is_asked: bool = True
    rounds_are_awaited: bool = True
    controllers_claim: bool = True


SHIPPED = Rules()
