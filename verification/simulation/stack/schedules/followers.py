"""Directed histories of followers: events between two steps of a fetch, and truncation before a log follows.

In a real process the broker's thread waits until a fetcher has written. Here one thread runs both without waiting, to
test that the log itself refuses wrong writes.
"""

from __future__ import annotations

from contextlib import suppress

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.rounds.fetch_round import FetchedHeaders, FetchHeaders, FetchRound
from lakelog.replication.server import follower_writes
from lakelog.replication.server.fetcher import fetch_runner, segment_copier
from lakelog.replication.server.fetcher.header_fetch import HeaderFetch
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_snapshot import batches_from
from lakelog.replication.storage.log.segment import Segment
from lakelog.schemas import LOG
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.stack.directing import (
    elect,
    freeze,
    is_in_sync,
    its_own_thread,
    kill,
    meanwhile,
    only,
    registration,
    show_life,
    thaw,
    try_to_elect,
    wait_for,
    without,
)
from lakelog.verification.simulation.stack.one_thread import Changes, InlineFetcher
from lakelog.verification.simulation.stack.stack_world import StackWorld


def _tail_of_broker_3(world: StackWorld) -> None:
    """Broker 3 has a record that only the dead leader 1 has, too. Broker 2 leads next; 2 and 3 are in sync."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(two)
    with only(world, three):
        client.send({0: 1}, 1000)
    freeze(three)
    kill(world, one)
    elect(world, 2, 3)
    thaw(two)
    world.run(two)
    thaw(three)


def fetch_that_lands_when_its_broker_leads(world: StackWorld) -> None:
    """A follower is about to append fetched records when its leader dies and the follower begins to lead."""
    (client, _), (one, two, three) = world.clients, world.nodes.values()
    freeze(two, three)
    with only(world):
        client.send({0: 1}, 1000)

    def lead() -> None:
        kill(world, one)
        elect(world, 2, 3)
        its_own_thread(world, two)

    thaw(two)
    with meanwhile(follower_writes, "append_as_follower", lead):
        world.run(two)


def truncation_that_is_made_when_its_broker_leads(world: StackWorld) -> None:
    """A follower is about to truncate its log when its leader dies, and the follower leads and gets records."""
    (_, other), (_, two, three) = world.clients, world.nodes.values()
    _tail_of_broker_3(world)

    def lead() -> None:
        kill(world, two)
        elect(world, 3)
        with Changes() as changes, world.acting(other):
            changes.change(world, "interrupt", lambda: its_own_thread(world, three))
            other.send({0: 1}, 5000)

    with meanwhile(fetch_runner, "truncate_logs", lead):
        world.run(three)


def truncation_of_a_role_that_is_over(world: StackWorld) -> None:
    """A follower is about to truncate its log when the same leader begins a new leader epoch. By then its log has new
    records of that leader instead of the old tail."""
    (_, other), (one, two, three) = world.clients, world.nodes.values()
    _tail_of_broker_3(world)

    def begin_anew() -> None:
        wait_for(world, without(world, 3), 2)
        with only(world, two), world.acting(other):
            other.send({0: 1}, 5000)
        show_life(world, 2, 3)
        its_own_thread(world, three)

    with meanwhile(FetchRound, "_maybe_truncate", begin_anew):
        world.run(three)
    wait_for(world, lambda: is_in_sync(world, 3, two), 2, 3)
    freeze(one)
    kill(world, two)
    try_to_elect(world, 3)


def _tail_below_what_is_committed(world: StackWorld) -> None:
    """Broker 3 has left the ISR and has to truncate its log, because other records are committed at those offsets."""
    (_, other), (_, two, three) = world.clients, world.nodes.values()
    _tail_of_broker_3(world)
    freeze(three)
    wait_for(world, without(world, 3), 2)
    with only(world, two):
        other.send({0: 1}, 5000)
    show_life(world, 2, 3)
    thaw(three)


def truncation_without_an_answer(world: StackWorld) -> None:
    """A follower fails to truncate its log, and then its leader dies."""
    (_, two, three) = world.nodes.values()
    _tail_below_what_is_committed(world)

    def fails(*_: object) -> None:
        raise KafkaStorageException("no answer")

    with Changes() as changes:
        changes.change(fetch_runner, "truncate_logs", fails)
        world.run(three)
        world.run(two)
    kill(world, two)
    try_to_elect(world, 3)


def look_before_the_truncation(world: StackWorld) -> None:
    """A leader reads the replica rows just before a follower truncates its log, and then dies."""
    (_, two, three) = world.nodes.values()
    _tail_below_what_is_committed(world)

    def poll() -> None:
        world.run(two)
        kill(world, two)

    with meanwhile(fetch_runner, "truncate_logs", poll):
        world.run(three)
    try_to_elect(world, 3)


def send_of_which_little_is_fetched_at_once(world: StackWorld) -> None:
    """Followers fetch one record at a time, and the leader's log does not move meanwhile."""
    (client, _) = world.clients
    with only(world, *world.nodes.values()):
        if not client.send({0: 3}, 8000):
            raise Violation("the_cluster_heals", "what is fetched little by little is not acknowledged")


def copy_without_an_answer(world: StackWorld) -> None:
    """A follower copies three segments of a partition. The first one stays out of its reach until its step ends."""
    (client, _), (_, two, three) = world.clients, world.nodes.values()
    freeze(two, three)
    with only(world):
        client.send({0: 3}, 1000)
    copy, away = segment_copier.copy_segment, list[str]()

    def fails(source: StorageRoot, segment: Segment, target: StorageRoot) -> Segment:
        away[:] = away or [segment.name]
        if segment.name in away:
            source.read(segment.name)  # an access of the step, of which an endless one has too many
            raise KafkaStorageException("no answer")
        return copy(source, segment, target)

    thaw(two)
    two.fetches_all = True
    with Changes() as changes:
        changes.change(segment_copier, "copy_segment", fails)
        world.run(two)


def append_without_an_answer(world: StackWorld) -> None:
    """A follower's append does not arrive, and gets no answer."""
    (client, _) = world.clients
    left = [KafkaStorageException("no answer")]
    append, step = follower_writes.append_as_follower, InlineFetcher.step

    def fails(*given: object) -> object:
        if left:
            raise left.pop()
        return append(*given)  # type: ignore[arg-type]

    def ends(fetcher: InlineFetcher, *given: bool) -> None:
        with suppress(ValueError):  # in a broker, the error is logged, and the partitions are delayed
            step(fetcher, *given)

    with Changes() as changes, only(world, *world.nodes.values()):
        changes.change(follower_writes, "append_as_follower", fails)
        changes.change(InlineFetcher, "step", ends)
        if not client.send({0: 1}, 8000):
            raise Violation("the_cluster_heals", "what could not be appended once is not fetched again")


def records_of_a_leader_before(world: StackWorld) -> None:
    """A producer waits for records that only its leader has. The next leader has other records at these offsets."""
    (client, other), (one, two, three) = world.clients, world.nodes.values()
    freeze(two, three)
    real = world.interrupt

    def depose() -> None:
        changes.change(world, "interrupt", real)
        kill(world, one)
        elect(world, 2, 3)
        thaw(two, three)
        with only(world, three, two), world.acting(other):
            other.send({0: 2})

    with Changes() as changes:
        changes.change(world, "interrupt", depose)
        client.send({0: 1}, 8000)


def headers_of_what_was_truncated(world: StackWorld) -> None:
    """A follower's fetch brings late headers of records that its leader truncated before it became leader."""
    (client, other), (one, two, three) = world.clients, world.nodes.values()
    freeze(three)
    with only(world, two):
        client.send({0: 1}, 1000)
    partition = registration(world).topic_id_partition
    late, _ = batches_from(two.root.child(LOG.name), {partition: 0}, {})
    kill(world, one)
    elect(world, 3)
    thaw(two, three)
    wait_for(world, lambda: is_in_sync(world, 2, two, three), 2, 3)
    freeze(three)
    elect(world, 2)
    thaw(three)
    wait_for(world, lambda: is_in_sync(world, 3, two, three), 2, 3)
    fetch = HeaderFetch.fetch

    def brings_more(headers: HeaderFetch, step: FetchHeaders) -> FetchedHeaders:
        found = fetch(headers, step)
        return found._replace(batches=[*late, *found.batches])

    with Changes() as changes:
        changes.change(HeaderFetch, "fetch", brings_more)
        with only(world, two, three):
            other.send({0: 1}, 8000)
    kill(world, two)
    try_to_elect(world, 3)
