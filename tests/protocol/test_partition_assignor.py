"""Who gets which partitions, as tables of cases. A partition is written as its topic's letter and its number: `t0`."""

import random

import pytest

from lakelog.replication.protocol.partition_assignor import (
    ASSIGNORS,
    AssignedPartition,
    Subscription,
    assign_ranges,
    assign_stickily,
    common_assignor,
)


def partitions(text):
    return [AssignedPartition(name[0], f"{name[0]}-id", int(name[1:])) for name in text.split()]


def names(found):
    return {member: " ".join(f"{p.topic}{p.partition}" for p in assigned) for member, assigned in found.items()}


def subscriptions(members):
    """`t` subscribes to t; `tu: t0 u1` to both, with what was assigned; `(t2)` is owned as well."""
    found = {}
    for member, text in members.items():
        topics, _, assigned = text.partition(":")
        owned = [name.strip("()") for name in assigned.split() if name.startswith("(")]
        plain = assigned.replace("(", "").replace(")", "")
        found[member] = Subscription(topics, partitions(plain), partitions(" ".join(owned)))
    return found


RANGES = {
    "one member": ({"a": "t"}, "t0 t1 t2", {"a": "t0 t1 t2"}),
    "an uneven number": ({"a": "t", "b": "t"}, "t0 t1 t2", {"a": "t0 t1", "b": "t2"}),
    "each topic for itself": (
        {"a": "tu", "b": "tu"}, "t0 t1 t2 u0 u1 u2", {"a": "t0 t1 u0 u1", "b": "t2 u2"},
    ),
    "more members than partitions": ({"a": "t", "b": "t", "c": "t"}, "t0 t1", {"a": "t0", "b": "t1", "c": ""}),
    "different subscriptions": (
        {"a": "t", "b": "tu", "c": "t"}, "t0 t1 t2 u0 u1", {"a": "t0", "b": "t1 u0 u1", "c": "t2"},
    ),
    "a topic without partitions": ({"a": "tu"}, "t0", {"a": "t0"}),
    "numbers above 9 come last": ({"a": "t", "b": "t"}, "t10 t9 t2 t1", {"a": "t1 t2", "b": "t9 t10"}),
    "what was assigned does not matter": ({"a": "t", "b": "t:t0 t1"}, "t0 t1", {"a": "t0", "b": "t1"}),
}  # fmt: skip

STICKY = {
    "one member": ({"a": "t"}, "t0 t1 t2", {"a": "t0 t1 t2"}),
    "evenly over all topics": ({"a": "tu", "b": "tu"}, "t0 t1 t2 u0 u1 u2", {"a": "t0 t2 u1", "b": "t1 u0 u2"}),
    "what is fair stays": ({"a": "t:t1 t3", "b": "t:t0 t2"}, "t0 t1 t2 t3", {"a": "t1 t3", "b": "t0 t2"}),
    "a new member gets only as many as it takes": (
        {"a": "t:t0 t1 t2", "b": "t:t3 t4 t5", "c": "t"},
        "t0 t1 t2 t3 t4 t5",
        {"a": "t0 t1", "b": "t3 t4", "c": "t2 t5"},
    ),
    "a member that has gone leaves its partitions to those with fewer": (
        {"a": "t:t0 t1", "b": "t:t2"}, "t0 t1 t2 t3", {"a": "t0 t1", "b": "t2 t3"},
    ),
    "new partitions": ({"a": "t:t0", "b": "t:t1"}, "t0 t1 t2 t3", {"a": "t0 t2", "b": "t1 t3"}),
    "partitions that are gone": ({"a": "t:t0 t1", "b": "t:t2 t3"}, "t0", {"a": "t0", "b": ""}),
    "a topic that a member has left": ({"a": "t:t0 u0", "b": "u"}, "t0 u0", {"a": "t0", "b": "u0"}),
    "what must move anyway goes first": (
        {"a": "t:(t0) (t3) t1 t2", "b": "t"}, "t0 t1 t2 t3", {"a": "t0 t3", "b": "t1 t2"},
    ),
    "an orphan goes back to its owner": ({"b": "t:t2", "c": "t:t3"}, "t2 t3 t4", {"b": "t2 t4", "c": "t3"}),
    "different subscriptions": (
        {"a": "t", "b": "tu", "c": "u"}, "t0 t1 t2 u0 u1 u2", {"a": "t0 t2", "b": "t1 u1", "c": "u0 u2"},
    ),
    "nobody else may read them": ({"a": "t", "b": "u"}, "t0 t1 t2 u0", {"a": "t0 t1 t2", "b": "u0"}),
    "a topic that nobody has subscribed to": ({"a": "t"}, "t0 u0", {"a": "t0"}),
}  # fmt: skip


@pytest.mark.parametrize(("members", "there", "expected"), RANGES.values(), ids=RANGES)
def test_ap_04_range_gives_consecutive_partitions_of_each_topic(members, there, expected):
    assert names(assign_ranges(subscriptions(members), partitions(there))) == expected


@pytest.mark.parametrize(("members", "there", "expected"), STICKY.values(), ids=STICKY)
def test_ap_04_cooperative_sticky_is_even_and_moves_few(members, there, expected):
    assert names(assign_stickily(subscriptions(members), partitions(there))) == expected


def test_ap_04_an_orphan_goes_back_to_the_member_that_still_owns_it():
    members = {"a": Subscription("t", partitions("t0"), partitions("t0")),
               "b": Subscription("t", partitions("t1"), partitions("t1 t2"))}  # fmt: skip
    assert names(assign_stickily(members, partitions("t0 t1 t2"))) == {"a": "t0", "b": "t1 t2"}


@pytest.mark.parametrize("seed", range(40))
def test_ap_04_both_assignors_give_each_partition_once_and_the_sticky_one_is_even_and_stable(seed):
    rng = random.Random(seed)
    everyone = [f"m{n}" for n in range(8)]
    before = {}
    for _ in range(12):
        present = rng.sample(everyone, rng.randint(1, len(everyone)))
        members = {m: Subscription("t", before.get(m, ()), before.get(m, ())) for m in present}
        there = partitions(" ".join(f"t{n}" for n in range(rng.randint(0, 30))))
        for assign in ASSIGNORS.values():
            found = assign(members, there)
            assert sorted(p for assigned in found.values() for p in assigned) == sorted(there)
            assert set(found) == set(members)
        found = assign_stickily(members, there)
        shares = sorted(map(len, found.values()))
        assert shares[-1] - shares[0] <= 1
        kept = sum(len(set(found[m]) & set(before.get(m, ()))) for m in found)
        fair = sum(
            min(len(set(before.get(m, ())) & set(there)), shares[-1 if k < len(there) % len(found) else 0])
            for k, m in enumerate(sorted(found, key=lambda m: -len(set(before.get(m, ())) & set(there))))
        )
        assert kept == fair, "no partition has moved that could have stayed"
        assert assign_stickily({m: Subscription("t", found[m], found[m]) for m in found}, there) == found
        before = found


@pytest.mark.parametrize(
    ("preferences", "expected"),
    [
        ([], None),
        ([["range"]], "range"),
        ([["range", "cooperative-sticky"], ["cooperative-sticky"]], "cooperative-sticky"),
        ([["range", "cooperative-sticky"], ["cooperative-sticky", "range"], ["cooperative-sticky", "range"]],
         "cooperative-sticky"),
        ([["range", "cooperative-sticky"], ["cooperative-sticky", "range"]], "range"),
        ([["range"], ["cooperative-sticky"]], None),
        ([["a newer one", "range"], ["range", "a newer one"]], "range"),
    ],
)  # fmt: skip
def test_ap_04_the_assignor_is_one_that_all_know(preferences, expected):
    assert common_assignor(preferences) == expected
