"""The sabotages that histories with three cluster roots have to catch: shipped code with a line broken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lakelog.replication.protocol.quorum_slot import ProposedCommit, RootState, Vote, to_propose
from lakelog.replication.protocol.rounds.quorum_round import QUORUM_RULES
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.quorum_member import packed
from lakelog.verification.simulation.stack.breaks import Break, StackSabotage, at
from lakelog.verification.simulation.stack.one_thread import Changes
from lakelog.verification.simulation.stack.schedules import voters

_commit_of = ClusterQuorum._commit_of


def _rule(name: str, rule: Any) -> Break:
    """Replaces a rule of the rounds of a quorum."""

    def apply(changes: Changes) -> None:
        changes.callback(object.__setattr__, QUORUM_RULES, name, getattr(QUORUM_RULES, name))
        object.__setattr__(QUORUM_RULES, name, rule)

    return apply


def _reads_at_home(quorum: ClusterQuorum, table: tuple[str, ...], version: int) -> int:
    folder = quorum.check_home(table).root.child(*table)
    while folder.exists(commit_name(version + 1)):
        version += 1
    return version


def _its_own(votes: Iterable[Vote], own: ProposedCommit | None) -> ProposedCommit | None:
    return own or to_propose(votes, own)


def _is_in_order(_: str, state: RootState) -> bool:
    return state.has_previous and not state.is_sealed


def _without_files(content: bytes, _: Mapping[str, bytes]) -> bytes:
    return packed(content, {})


def _goes_on_alone(log: DeltaLog, **_: bool) -> bool:
    log._voting = ()
    return False


def _known_roots_vote(quorum: ClusterQuorum, table: tuple[str, ...], version: int) -> ProposedCommit:
    found = _commit_of(quorum, table, version)
    return found if found.roots else found._replace(roots=tuple(quorum.known.members))


ROOT_SABOTAGES: dict[str, StackSabotage] = {
    "publishes_before_a_majority": StackSabotage(
        "one vote decides a commit of the cluster roots", _rule("majority", lambda _: 1)
    ),
    "counts_any_root": StackSabotage(
        "a vote counts at a root that has lost its identity, and perhaps votes",
        _rule("counts", _is_in_order),
        voters.restored_root_and_one_away,
    ),
    "proposes_its_own": StackSabotage(
        "a writer proposes its own commit where another one may be decided", _rule("to_propose", _its_own)
    ),
    "reads_at_home": StackSabotage(
        "a process reads what its nearest root has, and asks no majority",
        at(("storage.delta.cluster_quorum.ClusterQuorum.catch_up", _reads_at_home)),
    ),
    "publishes_at_a_lost_root": StackSabotage(
        "commits are published at a root that was emptied or restored",
        at(("storage.delta.quorum_member.QuorumMember.is_still", lambda *_, **__: True)),
        voters.emptied_root,
    ),
    "goes_on_alone": StackSabotage(
        "a process that knew one root goes on to decide there, although others vote by now",
        at(("storage.delta.delta_log.DeltaLog._join", _goes_on_alone)),
    ),
    "known_roots_vote_too_early": StackSabotage(
        "roots vote on a table that the first one may still decide alone",
        at(("storage.delta.cluster_quorum.ClusterQuorum._commit_of", _known_roots_vote)),
    ),
    "files_are_not_voted_on": StackSabotage(
        "the data files of a commit are not in what the roots vote on",
        at(("storage.delta.cluster_quorum.packed", _without_files)),
    ),
}
