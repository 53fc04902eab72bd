"""Directed histories of a cluster with three roots: one is lost, and then another one does not answer."""

from __future__ import annotations

from lakelog.verification.simulation.stack.rates import ROOT_EMPTIED, ROOT_RESTORED
from lakelog.verification.simulation.stack.stack_world import StackWorld
from lakelog.verification.simulation.stack.voting_roots import VotingRoots

_ROUNDS = 12


def emptied_root(world: StackWorld) -> None:
    """A root is emptied, and the others go on."""
    voting = _voting(world)
    voting.lose(voting.uris[0], ROOT_EMPTIED)
    for _ in range(_ROUNDS):
        world.go_on()
    assert world.clients[0].send({0: 1, 1: 1})


def restored_root_and_one_away(world: StackWorld) -> None:
    """A root is restored from a copy that is not old, and then another one is away: there is no majority."""
    voting, reach = _voting(world), world.faults.reach
    voting.back_up(voting.uris[0])
    voting.lose(voting.uris[0], ROOT_RESTORED)

    def reach_two(uri: str) -> None:
        if uri.startswith(voting.uris[1]):
            raise OSError(f"{uri}: no route to host")
        reach(uri)

    world.faults.reach = reach_two
    for _ in range(_ROUNDS):
        world.go_on()
    world.faults.reach = reach


def _voting(world: StackWorld) -> VotingRoots:
    assert world.voting is not None, "it has several cluster roots"
    return world.voting
