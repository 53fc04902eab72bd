"""Breaks shipped code for a sabotage of the stack tier. `Changes` restores it afterwards."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from lakelog.replication.protocol.rounds.fetch_round import FETCH_RULES
from lakelog.replication.protocol.rounds.leader_round import LEADER_RULES
from lakelog.replication.protocol.rounds.role_round import ROLE_RULES
from lakelog.replication.protocol.rounds.send_round import SEND_RULES
from lakelog.verification.simulation.rules import SHIPPED, Rules
from lakelog.verification.simulation.stack.one_thread import PACKAGE, Changes
from lakelog.verification.simulation.stack.stack_world import StackWorld

Break = Callable[[Changes], None]
DirectedHistory = Callable[[StackWorld], None]


class StackSabotage(NamedTuple):
    """A description of the break, the break, and the directed history that exposes it; None if random histories do."""

    what: str
    apply: Break
    schedule: DirectedHistory | None = None


def at(*places: tuple[str, Any]) -> Break:
    """Replaces the objects at these dotted paths."""

    def apply(changes: Changes) -> None:
        for path, what in places:
            changes.change_at(path, what)

    return apply


def all_of(*breaks: Break) -> Break:
    """Applies all of these breaks."""

    def apply(changes: Changes) -> None:
        for each in breaks:
            each(changes)

    return apply


def of_rules(broken: Rules) -> Break:
    """Replaces, in shipped code, the rules that a sabotage of the rules tier has broken. Raises ValueError if shipped
    code uses none of them. It leaves `link` alone, because a log's files need the chain: see `WITHOUT_CHAIN`."""

    def apply(changes: Changes) -> None:
        count = 0
        for field in dataclasses.fields(Rules):
            shipped, rule = getattr(SHIPPED, field.name), getattr(broken, field.name)
            if rule is not shipped and callable(shipped) and field.name != "link":
                count += _replace(changes, field.name, shipped, rule)
        if not count:
            raise ValueError("what this sabotage breaks is not there in what ships")

    return apply


def _replace(changes: Changes, name: str, shipped: Any, rule: Any) -> int:
    """Replaces a rule in the shipped modules that import it, and returns in how many. The module that defines it keeps
    it, because the broken rule may call it there."""
    count = 0
    for rules in (ROLE_RULES, LEADER_RULES, FETCH_RULES, SEND_RULES):
        if getattr(rules, name, None) is shipped:
            object.__setattr__(rules, name, rule)
            changes.callback(object.__setattr__, rules, name, shipped)
            count += 1
    for module_name, module in sorted(sys.modules.items()):
        is_ours = module_name.startswith(PACKAGE) and not module_name.startswith(PACKAGE + "simulation")
        if is_ours and module_name != shipped.__module__:
            for attribute in [a for a, value in vars(module).items() if value is shipped]:
                changes.change(module, attribute, rule)
                count += 1
    return count
