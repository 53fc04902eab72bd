"""The rules of a group, as cases and as random histories. A partition is written as its topic and number: `t0`."""

import random
from dataclasses import replace

import pytest

from lakelog.replication.errors import (
    FencedInstanceIdException,
    InconsistentGroupProtocolException,
    UnknownMemberIdException,
)
from lakelog.replication.protocol.consumer_group import (
    ConsumerGroup,
    GroupMember,
    give_up,
    join,
    needs_rebalance,
    rebalance,
    take,
    to_give_up,
    to_take,
    without,
)
from lakelog.replication.protocol.partition_assignor import AssignedPartition


def member(name, topics=("t",), assignors=("cooperative-sticky",)):
    return GroupMember(name, "", "here", -1, 6000, tuple(topics), tuple(assignors))


def there(**counts):
    """The partitions of topics: `there(t=2)` has t0 and t1."""

    def of(topics):
        return [AssignedPartition(t, f"{t}-id", n) for t in sorted(topics) for n in range(counts.get(t, 0))]

    return of


def names(partitions):
    return " ".join(f"{p.topic}{p.partition}" for p in partitions)


def shown(group):
    """What each member is assigned, and what it owns."""
    return {m.member_id: (names(m.assigned), names(m.owned)) for m in group.members}


def settled(group):
    """Every member has given up and taken what it is to."""
    for _ in range(2):
        for one in group.members:
            group = take(give_up(group, one.member_id, to_give_up(group, one.member_id)), one.member_id)
    return group


FOUR = there(t=4)


@pytest.fixture
def pair():
    """a owns all four partitions, and b has come."""
    return join(settled(join(ConsumerGroup(), member("a"), FOUR)), member("b"), FOUR)


def test_ap_04_a_partition_is_taken_only_once_its_owner_has_given_it_up(pair):
    assert (pair.generation, pair.state) == (2, "Reconciling")
    assert shown(pair) == {"a": ("t0 t1", "t0 t1 t2 t3"), "b": ("t2 t3", "")}
    assert (names(to_give_up(pair, "a")), names(to_take(pair, "b"))) == ("t2 t3", "")
    assert take(pair, "b") == pair
    half = take(give_up(pair, "a", to_give_up(pair, "a")[:1]), "b")
    assert shown(half) == {"a": ("t0 t1", "t0 t1 t3"), "b": ("t2 t3", "t2")}
    done = settled(half)
    assert shown(done) == {"a": ("t0 t1", "t0 t1"), "b": ("t2 t3", "t2 t3")}
    assert (done.generation, done.state) == (2, "Stable"), "only what is assigned makes a generation"


def test_ap_04_partitions_of_a_dead_member_are_free_at_once(pair):
    left = without(pair, {"a"}, FOUR)
    assert (left.generation, shown(left)) == (3, {"b": ("t0 t1 t2 t3", "")})
    assert names(to_take(left, "b")) == "t0 t1 t2 t3"
    with pytest.raises(UnknownMemberIdException, match="member a is not in the group"):
        give_up(left, "a", ())


def test_ap_04_a_member_that_has_gone_already_is_not_removed_again(pair):
    assert without(pair, {"x"}, FOUR) is pair


def test_ap_04_the_generation_outlives_the_last_member(pair):
    empty = without(pair, {"a", "b"}, FOUR)
    assert (empty.generation, empty.state, empty.members) == (3, "Empty", ())
    assert join(empty, member("c"), FOUR).generation == 4


def static(name, instance, **given):
    return replace(member(name, **given), instance_id=instance)


@pytest.fixture
def static_pair():
    """The static member s owns t0 and t1, and b the others."""
    alone = settled(join(ConsumerGroup(), static("s-1", "s"), FOUR))
    return settled(join(alone, member("z"), FOUR))


def test_ap_04_kip_345_a_static_member_takes_the_place_of_the_last_one_of_its_name(static_pair):
    beaten = static_pair.with_member(replace(static_pair.member("s-1"), heartbeat=7))
    new = join(beaten, replace(static("s-2", "s"), session_timeout_ms=9000, host="there"), FOUR)
    assert shown(new) == {"s-2": ("t0 t1", "t0 t1"), "z": ("t2 t3", "t2 t3")}
    assert (new.generation, new.state) == (beaten.generation + 1, "Stable")
    was, now = beaten.member("s-1"), new.member("s-2")
    assert (now.slot, now.heartbeat, now.session_timeout_ms, now.host) == (was.slot, 7, 9000, "there")


@pytest.mark.parametrize("given", [{"topics": ("t", "u")}, {"assignors": ("cooperative-sticky", "range")}])
def test_ap_04_kip_345_one_that_subscribes_otherwise_has_all_assigned_anew(static_pair, given):
    new = join(static_pair, static("s-2", "s", **given), there(t=4, u=4))
    assert set(shown(new)) == {"s-2", "z"}
    assert (new.member("s-2").topics, new.member("s-2").assignors) == (
        given.get("topics", ("t",)), given.get("assignors", ("cooperative-sticky",)),
    )  # fmt: skip
    assert names(new.member("s-2").owned) == "t0 t1"
    assert {p for m in new.members for p in m.assigned} == set(there(t=4, u=4)(new.topics))
    assert new.generation == static_pair.generation + 1


def test_ap_04_kip_345_one_with_no_assignor_in_common_is_refused(static_pair):
    with pytest.raises(InconsistentGroupProtocolException):
        join(static_pair, static("s-2", "s", assignors=("range",)), FOUR)


@pytest.mark.parametrize("instance", ["other", None])
def test_ap_04_kip_345_members_of_other_names_take_nobodys_place(static_pair, instance):
    assert set(shown(join(static_pair, static("c", instance), FOUR))) == {"s-1", "z", "c"}


@pytest.mark.parametrize(
    ("member_id", "instance", "expected"),
    [
        ("s-1", "s", "s-1"), ("z", None, "z"), ("s-2", "s", FencedInstanceIdException),
        ("y", None, UnknownMemberIdException), ("y", "y", UnknownMemberIdException),
    ],
)  # fmt: skip
def test_ap_04_kip_345_a_process_whose_place_is_taken_is_fenced(static_pair, member_id, instance, expected):
    if isinstance(expected, str):
        assert static_pair.own_member(member_id, instance).member_id == expected
    else:
        with pytest.raises(expected):
            static_pair.own_member(member_id, instance)


@pytest.mark.parametrize(
    ("partitions", "needed"),
    [(there(t=4), False), (there(t=5), True), (there(t=3), True), (there(), True), (there(t=4, u=2), False)],
)
def test_ap_04_other_partitions_need_another_generation(pair, partitions, needed):
    assert needs_rebalance(pair, partitions) == needed
    assert not needs_rebalance(rebalance(pair, partitions), partitions)
    assert not needs_rebalance(ConsumerGroup(), partitions)


def test_ap_04_a_topic_that_is_made_again_has_other_partitions(pair):
    def again(_):
        return [AssignedPartition("t", "another-id", n) for n in range(4)]

    assert needs_rebalance(pair, again)
    new = rebalance(pair, again)
    assert to_give_up(new, "a") == pair.member("a").owned
    assert {p.topic_id for m in settled(new).members for p in m.owned} == {"another-id"}


def test_ap_04_a_member_may_subscribe_to_other_topics(pair):
    changed = join(pair, member("b", ["u"]), there(t=4, u=1))
    assert shown(changed) == {"a": ("t0 t1 t2 t3", "t0 t1 t2 t3"), "b": ("u0", "")}
    assert [m.slot for m in changed.members] == [0, 1]


def test_ap_04_the_lowest_free_slot_is_taken(pair):
    three = join(pair, member("c"), FOUR)
    assert [m.slot for m in three.members] == [0, 1, 2]
    assert join(without(three, {"b"}, FOUR), member("d"), FOUR).member("d").slot == 1


def test_ap_04_who_knows_no_assignor_of_a_newer_version_removes_no_member():
    """A tool, or a consumer of another group, is no member itself."""
    newer = [member(name, assignors=("sticky-by-rack",)) for name in "ab"]
    with pytest.raises(
        InconsistentGroupProtocolException,
        match="know the assignors sticky-by-rack, and this version of Lakelog knows range, cooperative-sticky: ",
    ):
        without(ConsumerGroup(1, tuple(newer)), {"a"}, FOUR)
    assert without(ConsumerGroup(1, tuple(newer)), {"a", "b"}, FOUR) == ConsumerGroup(2)


def test_ap_04_a_member_without_a_common_assignor_is_refused(pair):
    with pytest.raises(
        InconsistentGroupProtocolException, match=r"is range, but the members .* know cooperative-sticky"
    ):
        join(pair, member("c", assignors=["range"]), FOUR)
    assert pair.assignor == "cooperative-sticky"


@pytest.mark.parametrize("seed", range(30))
def test_ap_04_in_any_history_a_partition_has_at_most_one_owner_and_one_in_the_end(seed):
    rng, group, count = random.Random(seed), ConsumerGroup(), 5
    for _ in range(150):
        names_now = [m.member_id for m in group.members]
        some, before = rng.choice(names_now or ["m0"]), group
        match rng.choice(("join", "leave", "give up", "take", "take", "partitions")) if names_now else "join":
            case "join":
                topics = rng.choice((["t"], ["t", "u"], ["u"]))
                assignors = rng.choice((["range", "cooperative-sticky"], ["cooperative-sticky", "range"]))
                group = join(group, member(f"m{rng.randrange(6)}", topics, assignors), there(t=count, u=3))
            case "leave":
                group = without(group, {some}, there(t=count, u=3))
            case "give up":
                given = [p for p in to_give_up(group, some) if rng.random() < 0.5]
                group = give_up(group, some, given)
            case "take":
                group = take(group, some)
            case "partitions":
                count = rng.randrange(9)
                group = rebalance(group, there(t=count, u=3))
        owned = [p for m in group.members for p in m.owned]
        assert len(owned) == len(set(owned)), "two owners"
        assert group.generation >= before.generation
        assert {m.slot for m in group.members} <= set(range(6))
    done = settled(group)
    assert done.state in ("Stable", "Empty")
    if done.members:
        assert {p for m in done.members for p in m.owned} == set(there(t=count, u=3)(done.topics))
