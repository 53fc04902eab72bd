"""Plans that drain, rebalance and replace brokers: tables of cases, and properties over seeded random clusters."""

from collections import Counter
from random import Random

import pytest

from lakelog.replication.errors import InvalidReplicaAssignmentException, InvalidReplicationFactorException
from lakelog.replication.protocol.reassignment_plan import Layout, drain, rebalance, replace_broker

SEEDS = range(60)


def layout(*replicas, open_=(1, 2, 3, 4), racks=None, sizes=()):
    """Partitions t-0, t-1 and so on, with these replicas and sizes."""
    named = {("t", number): brokers for number, brokers in enumerate(replicas)}
    known = {broker for brokers in replicas for broker in brokers} | set(open_)
    return Layout(named, racks or dict.fromkeys(known), frozenset(open_), dict(zip(named, sizes, strict=False)))


def numbered(plan):
    return {number: replicas for (_, number), replicas in plan.items()}


@pytest.mark.parametrize(
    ("given", "brokers", "expected"),
    [
        (layout((1, 2), (2, 3)), [4], {}),
        (layout((1, 2), (2, 3)), [1], {0: (4, 2)}),
        (layout((1, 2), (2, 3), open_=(2, 3)), [1], {0: (3, 2)}),
        (layout((1, 2), (2, 1), open_=(1, 2, 3)), [2], {0: (1, 3), 1: (3, 1)}),
        (layout((1, 2), (1, 2)), [1, 2], {0: (3, 4), 1: (4, 3)}),
        (layout((1, 9), (2, 3), open_=(1, 2, 3)), [9], {0: (1, 2)}),
        (layout((1,), (2,), (2,), sizes=(5, 3, 3)), [1], {0: (3,)}),
        (layout((1,), (1,), (3,), (4,), open_=(3, 4), sizes=(9, 1, 5, 7)), [1], {0: (3,), 1: (4,)}),
        (layout((1, 2), (3, 4), racks={1: "a", 2: "b", 3: "a", 4: "b"}), [1], {0: (2, 3)}),
        (layout((1, 2), (3, 4), (3, 4), racks={1: "a", 2: "b", 3: "a", 4: "b"}), [1], {0: (2, 3)}),
        (layout((1, 2), open_=(1, 2, 3, 4), racks={1: "a", 2: "b", 3: "b", 4: "b"}), [1], {0: (3, 2)}),
    ],
    ids=[
        "no replica there", "to the emptiest", "the only one left", "two take turns in leading", "two brokers at once",
        "a dead one", "one replica", "the largest to the one with fewer bytes", "the rack counts",
        "the rack counts more than the number", "no other rack is left",
    ],
)  # fmt: skip
def test_ra_01_a_drain_moves_what_lies_there_and_nothing_else(given, brokers, expected):
    assert numbered(drain(given, brokers)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (layout((1, 2), (2, 1), open_=(1, 2)), {}),
        (layout((1, 2), (1, 2), open_=(1, 2)), {0: (2, 1)}),
        (layout((1,), (1,), (2,), (2,), open_=(1, 2, 3), sizes=(9, 5, 9, 9)), {1: (3,)}),
        (layout((1,), (1,), (1,), (2,), open_=(1, 2)), {0: (2,)}),
        (layout((1, 9), (1, 9), (1, 2), open_=(1, 2)), {0: (2, 9)}),
        (layout((1, 2), (1, 2), open_=(1, 2, 3), racks={1: "a", 2: "b", 3: "b"}), {0: (3, 1)}),
        (layout(open_=(1, 2)), {}),
        (layout((1,), (1,), open_=()), {}),
    ],
    ids=[
        "even", "leaders alone", "the smallest", "the first of equals", "one that is not open keeps what it has",
        "on the rack of the new broker", "no partition", "no open broker",
    ],
)  # fmt: skip
def test_ra_01_a_rebalance_moves_the_least_that_makes_brokers_even(given, expected):
    plan = rebalance(given)
    assert numbered(plan) == expected
    assert_sound(given, plan)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (layout((1, 9, 2), (9, 3, 1), (1, 2, 3)), {0: (1, 4, 2), 1: (4, 3, 1)}),
        (layout((1, 2)), {}),
    ],
    ids=["in its place", "no replica there"],
)
def test_ra_01_a_replacement_takes_each_replica_in_its_place(given, expected):
    assert numbered(replace_broker(given, 9, 4)) == expected


@pytest.mark.parametrize(
    ("plan", "error", "words"),
    [
        (
            lambda: drain(layout((1, 2), (1, 2, 3), open_=(1, 2, 3)), [1]),
            InvalidReplicationFactorException,
            "t-1: 1 of its 3 replicas must move, and too few other brokers are alive, not cordoned and not drained: n",
        ),
        (
            lambda: drain(layout((1, 2), open_=(1, 3)), [1, 2]),
            InvalidReplicationFactorException,
            "t-0: 2 of its 2 replicas must move, and too few other brokers are alive, not cordoned and not drained: 3",
        ),
        (
            lambda: replace_broker(layout((9, 1), (9, 2), (9, 4), (4, 9)), 9, 4),
            InvalidReplicaAssignmentException,
            "broker 4 has replicas of t-2, t-3 already, and a partition has one on a broker",
        ),
        (
            lambda: replace_broker(layout((9, 1), open_=(1, 2)), 9, 4),
            InvalidReplicaAssignmentException,
            "broker 4 gets no new replica: it is not alive, or is cordoned; open brokers: 1, 2",
        ),
    ],
)
def test_ra_01_a_plan_that_cannot_be_names_what_is_missing(plan, error, words):
    with pytest.raises(error) as caught:
        plan()
    assert words in str(caught.value)


def random_layout(seed, has_racks):
    """Up to 12 brokers with different loads. A rack, and a partition, have different sizes each time."""
    random = Random(seed)
    brokers = range(random.randint(4, 12))
    weights = [random.choice((1, 1, 1, 2, 5)) for _ in brokers]
    partitions = [("t", number) for number in range(random.randint(1, 60))]
    replicas = {}
    for partition in partitions:
        chosen: list[int] = []
        while len(chosen) < random.choice((1, 2, 3, 3)):
            (broker,) = random.choices(brokers, weights)
            chosen += [broker] * (broker not in chosen)
        replicas[partition] = tuple(chosen)
    racks = {broker: random.choice("abc") if has_racks else None for broker in brokers}
    closed = random.sample(brokers, random.choice((0, 0, 1)))
    sizes = {partition: random.randrange(1000) for partition in partitions if random.random() < 0.9}
    return Layout(replicas, racks, frozenset(brokers) - set(closed), sizes)


def assert_sound(given, plan):
    """What holds for every plan."""
    for partition, replicas in plan.items():
        before = given.replicas[partition]
        assert replicas != tuple(before), "no partition is moved that stays as it is"
        assert (len(set(replicas)), len(replicas)) == (len(replicas), len(before))
        assert set(replicas) - set(before) <= given.open
    assert plan == dict(sorted(plan.items()))


def held(given, plan, brokers):
    return Counter(dict.fromkeys(brokers, 0)) + Counter(b for r in {**given.replicas, **plan}.values() for b in r)


def spread(counter, brokers):
    loads = [counter[broker] for broker in brokers]
    return max(loads, default=0) - min(loads, default=0)


def moves(given, plan):
    return sum(len(came) for _, came in given.moved(plan).values())


@pytest.mark.parametrize("has_racks", [False, True], ids=["no racks", "racks"])
@pytest.mark.parametrize("seed", SEEDS)
def test_ra_01_any_drain_moves_each_replica_there_once_and_none_could_lie_better(seed, has_racks):
    given = random_layout(seed, has_racks)
    gone = set(Random(seed).sample(sorted(given.racks), 1 + seed % 2))
    left = given.open - gone
    try:
        plan = drain(given, gone)
    except InvalidReplicationFactorException:
        short = [r for r in given.replicas.values() if set(r) & gone and len(set(r) & gone) > len(left - set(r))]
        assert short, "a plan is refused only if brokers are missing"
        return
    assert_sound(given, plan)
    after, loads = {**given.replicas, **plan}, held(given, plan, left)
    assert plan.keys() == {p for p, r in given.replicas.items() if set(r) & gone}
    for partition, replicas in plan.items():
        before = given.replicas[partition]
        assert set(before) - set(replicas) == set(before) & gone
        if before[0] not in gone:
            assert replicas[0] == before[0], "the preferred leader stays"
        came = set(replicas) - set(before)
        least = min(given.number_of_racks(before), best_racks(given, before, gone))
        assert given.number_of_racks(replicas) >= least
        for here in came:
            for there in left - set(replicas):
                other = [b for b in replicas if b != here] + [there]
                if given.number_of_racks(other) >= least:
                    assert loads[there] > loads[here] - 2, f"{partition}: {there} would be more even than {here}"
    assert not any(set(r) & gone for r in after.values())
    assert plan == drain(given, gone)


def best_racks(given, before, gone):
    """The most racks that a partition can be on after a drain."""
    kept = [b for b in before if b not in gone]
    racks = {given.racks[b] for b in kept}
    others = {given.racks[b] for b in given.open - gone - set(before)} - racks
    return len(racks) + min(len(before) - len(kept), len(others))


def least_moves(given):
    """The moves without which no brokers are even: those over the ceiling go, and those below the floor come."""
    loads = held(given, {}, given.open)
    if not given.open:
        return 0
    floor, rest = divmod(sum(loads[b] for b in given.open), len(given.open))
    over = sum(max(0, loads[b] - floor - bool(rest)) for b in given.open)
    return max(over, sum(max(0, floor - loads[b]) for b in given.open))


@pytest.mark.parametrize("seed", SEEDS)
def test_ra_01_any_rebalance_makes_brokers_even_with_the_least_moves(seed):
    given = random_layout(seed, has_racks=False)
    plan = rebalance(given)
    assert_sound(given, plan)
    assert spread(held(given, plan, given.open), given.open) <= 1
    assert moves(given, plan) == least_moves(given)
    assert_leaders_are_even(given, plan)
    assert rebalance(Layout({**given.replicas, **plan}, given.racks, given.open, given.sizes)) == {}
    assert plan == rebalance(given)


@pytest.mark.parametrize("seed", SEEDS)
def test_ra_01_any_rebalance_with_racks_is_as_even_as_they_allow(seed):
    given = random_layout(seed, has_racks=True)
    plan = rebalance(given)
    assert_sound(given, plan)
    assert given.on_fewer_racks(plan) == []
    after, loads = {**given.replicas, **plan}, held(given, plan, given.open)
    assert spread(loads, given.open) <= spread(held(given, {}, given.open), given.open)
    for partition, replicas in after.items():
        for here in set(replicas) & given.open:
            for there in given.open - set(replicas):
                other = [b for b in replicas if b != here] + [there]
                if given.number_of_racks(other) >= given.number_of_racks(given.replicas[partition]):
                    assert loads[there] > loads[here] - 2, f"{partition}: {there} would be more even than {here}"
    assert_leaders_are_even(given, plan)


def assert_leaders_are_even(given, plan):
    """No chain of partitions, each led by another replica, would make leaders more even."""
    after = {**given.replicas, **plan}
    leaders = Counter(r[0] for r in after.values())
    for start in given.open:
        reached, front = {start}, [start]
        while front:
            front = [b for r in after.values() if r[0] in front for b in r if b in given.open and b not in reached]
            reached |= set(front)
        assert all(leaders[end] > leaders[start] - 2 for end in reached)


@pytest.mark.parametrize("seed", SEEDS)
def test_ra_01_the_smallest_replicas_of_a_broker_go_to_a_new_one(seed):
    random = Random(seed)
    replicas = {("t", number): (random.randint(1, 4),) for number in range(40)}
    given = Layout(replicas, dict.fromkeys(range(1, 6)), frozenset(range(1, 6)), {p: random.random() for p in replicas})
    plan = rebalance(given)
    gone = Counter(replicas[p] for p in plan)
    for broker, count in gone.items():
        held_here = sorted((p for p, r in replicas.items() if r == broker), key=lambda p: given.sizes[p])
        assert {p for p in plan if replicas[p] == broker} == set(held_here[:count])
