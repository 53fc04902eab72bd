"""What a follower does with each header of its stream: by examples, and as `plan_appends` decides in the driver."""

import random
from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from chispa import assert_df_equality

from lakelog.replication.frames.fetch_plan import FetchAction, fetch_plan
from lakelog.replication.protocol.append_plan import FetchedBatch, plan_appends
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.schemas import BATCH_HEADERS, FETCH_STATES
from tests.frames.rows import table

LEADER, BROKER, THIRD = 1, 2, 3
APPEND, SKIP, GAP, DIVERGED = FetchAction.APPEND, FetchAction.SKIP, FetchAction.GAP, FetchAction.DIVERGED
TRUNCATE_FIRST, DELAYED = FetchAction.TRUNCATE_FIRST, FetchAction.DELAYED
FENCED, UNASSIGNED = FetchAction.FENCED, FetchAction.UNASSIGNED
ACTIONS = {value for name, value in vars(FetchAction).items() if name.isupper()}


class Stream(NamedTuple):
    """Rows of the three inputs of a plan."""

    headers: list[dict[str, Any]]
    metadata: list[dict[str, Any]]
    states: list[dict[str, Any]]


def header(topic_id, partition, base, last, previous, chain, segment="s"):
    return {
        "topic_id": topic_id, "partition": partition, "base_offset": base, "last_offset": last, "leader_epoch": 4,
        "segment": segment, "segment_bytes": 100, "bytes": 10, "previous": previous, "chain": chain, "is_behind": True,
    }  # fmt: skip


def state(topic_id, partition, end, **said):
    """The fetch state of a partition whose log ends with an offset and a chain."""
    offset, chain = end
    of_log = {"topic_id": topic_id, "partition": partition, "log_end_offset": offset, "chain": chain}
    return {"leader_epoch": 5, "state": "Fetching", **of_log, **said}


def assignment(topic_id, partition, **said):
    replicas = {"replicas": [LEADER, BROKER], "leader": LEADER, "leader_epoch": 5}
    return {"topic_id": topic_id, "partition": partition, **replicas, **said}


def frame(spark, of, rows):
    return spark.createDataFrame(pa.Table.from_pylist(rows, of.arrow))


def plan_of(spark, stream):
    """The headers of a stream with their actions, as a DataFrame."""
    metadata = table(spark, "metadata", *stream.metadata)
    headers, states = frame(spark, BATCH_HEADERS, stream.headers), frame(spark, FETCH_STATES, stream.states)
    return fetch_plan(headers, metadata, states, BROKER, LEADER)


def by_topic(spark, streams):
    """The rows of the plan of all streams, for each topic id. The streams share one job."""
    whole = Stream(*([row for rows in of_one for row in rows] for of_one in zip(*streams.values(), strict=True)))
    found = {topic_id: [] for topic_id in streams}
    for row in plan_of(spark, whole).collect():
        found[row.topic_id].append(row)
    return found


class Told(NamedTuple):
    """A header and its action."""

    base_offset: int
    last_offset: int
    previous: str
    chain: str
    action: str
    segment: str = "s"
    partition: int = 0


# Name -> the fields of `Told` for each header. The log ends at offset 10 with the chain "x".
HEADERS = {
    "at the log end": [(10, 12, "x", "a", APPEND)],
    "below the log end": [(7, 9, "w", "x", SKIP)],
    "below it, whatever it follows": [(7, 8, "other", "another", SKIP)],
    "above the log end": [(11, 12, "x", "a", GAP)],
    "above it, whatever it follows": [(11, 12, "other", "a", GAP)],
    "at the log end, with another chain": [(10, 12, "other", "a", DIVERGED)],
    "across the log end": [(8, 12, "w", "a", DIVERGED)],
    "across it by one record": [(8, 10, "w", "a", DIVERGED)],
    "across it, to a log that starts within it": [(8, 12, "x", "a", APPEND)],
    "one after the other": [(10, 12, "x", "a", APPEND), (13, 13, "a", "b", APPEND)],
    "below, then at the log end": [(7, 9, "w", "x", SKIP), (10, 12, "x", "a", APPEND)],
    "the log end moves past what is behind it": [(10, 14, "x", "a", APPEND), (11, 13, "o", "b", SKIP)],
    "the last one that reached furthest counts": [
        (10, 14, "x", "a", APPEND), (11, 12, "o", "b", SKIP), (15, 16, "a", "c", APPEND),
    ],
    "a gap at the start": [(11, 12, "x", "a", GAP), (13, 13, "a", "b", GAP)],
    "a gap in between": [(10, 12, "x", "a", APPEND), (14, 15, "b", "c", GAP), (16, 16, "c", "d", GAP)],
    "below, then a gap": [(7, 9, "w", "x", SKIP), (11, 12, "y", "a", GAP)],
    "a gap remains one where histories differ": [(11, 14, "y", "a", GAP), (15, 15, "other", "b", GAP)],
    "after a gap nothing is behind": [(11, 14, "y", "a", GAP), (12, 13, "o", "b", GAP)],
    "nothing follows another history": [(10, 12, "other", "a", DIVERGED), (13, 13, "a", "b", DIVERGED)],
    "another history after what follows": [(10, 12, "x", "a", APPEND), (13, 13, "other", "b", DIVERGED)],
    "another history is no gap, whatever comes later": [(10, 12, "other", "a", DIVERGED), (14, 15, "b", "c", DIVERGED)],
    "after another history nothing is behind": [(10, 14, "other", "a", DIVERGED), (11, 12, "o", "b", DIVERGED)],
    "twice": [(10, 12, "x", "a", APPEND, "s"), (10, 12, "x", "a", SKIP, "t"), (13, 13, "a", "b", APPEND, "t")],
    "twice in a segment": [(10, 12, "x", "a", APPEND), (10, 12, "x", "a", SKIP), (13, 13, "a", "b", APPEND)],
    "twice, after a gap": [(11, 12, "x", "a", GAP, "s"), (11, 12, "x", "a", GAP, "t")],
    "of two histories the lower chain counts": [
        (10, 12, "x", "b", APPEND, "t"), (10, 12, "x", "c", SKIP, "s"), (13, 13, "b", "d", APPEND),
    ],
    "of two histories the shorter batch counts": [(10, 11, "x", "b", APPEND), (10, 14, "x", "a", DIVERGED)],
    "a shorter one up to the log end has no say": [(8, 9, "w", "zz", SKIP), (10, 12, "x", "a", APPEND)],
    "nor one up to the end of the one before": [
        (10, 14, "x", "a", APPEND), (13, 14, "o", "zz", SKIP), (15, 15, "a", "b", APPEND),
    ],
    "nor does it make another history follow": [(8, 9, "w", "zz", SKIP), (10, 12, "zz", "a", DIVERGED)],
    "a gap does not concern another partition": [
        (11, 12, "x", "a", GAP), (10, 12, "x", "a", APPEND, "s", 1), (13, 13, "a", "b", APPEND, "s", 1),
    ],
    "nor does another history, or what is appended": [
        (10, 12, "x", "a", APPEND), (10, 12, "other", "a", DIVERGED, "s", 1), (13, 13, "a", "b", APPEND),
    ],
}  # fmt: skip

# Name -> what a fetch state and an assignment say (None: there is none), and the action for all headers.
PARTITIONS = {
    "truncating": ({"state": "Truncating"}, {}, TRUNCATE_FIRST),
    "delayed": ({"state": "Delayed"}, {}, DELAYED),
    "metadata have a later leader epoch": ({}, {"leader_epoch": 6}, FENCED),
    "metadata have an earlier leader epoch": ({}, {"leader_epoch": 4}, FENCED),
    "another leader": ({}, {"leader": THIRD}, UNASSIGNED),
    "no leader": ({}, {"leader": -1}, UNASSIGNED),
    "no replica here": ({}, {"replicas": [LEADER, THIRD]}, UNASSIGNED),
    "not in metadata": ({}, None, UNASSIGNED),
    "not fetched": (None, {}, UNASSIGNED),
    "neither in metadata nor fetched": (None, None, UNASSIGNED),
    "truncating under another leader epoch": ({"state": "Truncating"}, {"leader_epoch": 6}, FENCED),
    "delayed, and another leader": ({"state": "Delayed"}, {"leader": THIRD, "leader_epoch": 6}, UNASSIGNED),
}
# What each header does in a partition where nothing is amiss.
THREE = [Told(7, 9, "w", "x", SKIP), Told(10, 12, "x", "a", APPEND), Told(14, 15, "b", "c", GAP)]
END = LogEnd(10, "x")


def example(topic_id, told, fetched=({}, {}), assigned=({}, {})):
    """The headers, in the reverse order, and their partitions: what a state and an assignment of each say."""
    headers = [header(topic_id, t.partition, *t[:4], t.segment) for t in reversed(told)]
    metadata = [assignment(topic_id, p, **said) for p, said in enumerate(assigned) if said is not None]
    states = [state(topic_id, p, END, **said) for p, said in enumerate(fetched) if said is not None]
    return Stream(headers, metadata, states)


def told_of(rows):
    return sorted(Told(*(row[name] for name in Told._fields)) for row in rows)


@pytest.fixture(scope="module")
def examples(spark):
    """The plan of all examples of this module, for each name."""
    streams = {name: example(name, [Told(*fields) for fields in rows]) for name, rows in HEADERS.items()}
    streams |= {name: example(name, THREE, (of, {}), (said, {})) for name, (of, said, _) in PARTITIONS.items()}
    return by_topic(spark, streams)


@pytest.mark.parametrize("name", HEADERS)
def test_ft_10_what_continues_the_log_is_appended_up_to_a_gap_or_another_history(examples, name):
    assert told_of(examples[name]) == sorted(Told(*fields) for fields in HEADERS[name])


@pytest.mark.parametrize("name", PARTITIONS)
def test_ft_02_what_the_fetcher_may_not_fetch_is_not_appended(examples, name):
    action = PARTITIONS[name][2]
    assert told_of(examples[name]) == [t._replace(action=action) for t in THREE]


def test_ft_02_no_headers_have_no_actions(spark):
    found = plan_of(spark, example("id", []))
    expected = spark.createDataFrame([], f"{BATCH_HEADERS.types}, action string")
    assert_df_equality(found, expected, ignore_nullable=True)


# What becomes of a batch of the leader's log, and how often. "behind": another batch ends where it ends.
FATES = {"there": 50, "missing": 6, "twice": 16, "fork": 6, "behind": 14, "across": 4, "other": 4}
ASSIGNED = ({}, {"leader_epoch": 4}, {"leader_epoch": 6}, {"leader": THIRD}, {"replicas": [LEADER]}, None)
FETCHED = ({}, {"state": "Truncating"}, {"state": "Delayed"}, None)


def chance_headers(rng, topic_id, partition):
    """The headers of a leader's log in which some are missing, some are there twice, and some are of another history;
    and the end of a follower's log that agrees with it, mostly."""
    rows, ends = [], [LogEnd(rng.randrange(3), some_chain(rng))]
    for _ in range(rng.randint(3, 9)):
        (base, previous), last = ends[-1], ends[-1].offset + rng.randrange(4)
        segment, chain = rng.choice("stu"), some_chain(rng)
        batch = (base, last, previous, chain, segment)
        ends.append(LogEnd(last + 1, chain))
        other = (some_chain(rng), rng.choice("stu"))
        match rng.choices(list(FATES), list(FATES.values()))[0]:
            case "there":
                rows.append(batch)
            case "twice":
                rows += [batch, (*batch[:4], rng.choice("stu"))]
            case "fork":
                rows += [batch, (base, base + rng.randrange(4), previous, *other)]
            case "behind":
                rows += [batch, (rng.randint(base, last), last, rng.choice((previous, chain, "other")), *other)]
            case "across":
                rows += [batch, (rng.randint(base, last), last + 1 + rng.randrange(3), rng.choice(ends).chain, *other)]
            case "other":
                rows.append((base, last, "other", chain, segment))
    end = rng.choice(ends[:4])
    if rng.random() < 0.1:
        end = LogEnd(end.offset + rng.randint(-1, 1), rng.choice((end.chain, "other")))
    rng.shuffle(rows)
    return [header(topic_id, partition, *row) for row in rows], end


def some_chain(rng):
    return f"{rng.getrandbits(40):010x}"


def chance_stream(seed):
    """Six partitions of a topic. Most are fetched as metadata say."""
    rng, stream = random.Random(seed), Stream([], [], [])
    for partition in range(6):
        headers, end = chance_headers(rng, str(seed), partition)
        stream.headers.extend(headers)
        said, kept = rng.choices(ASSIGNED, (20, 1, 1, 1, 1, 1))[0], rng.choices(FETCHED, (17, 1, 1, 1))[0]
        if said is not None:
            stream.metadata.append(assignment(str(seed), partition, **said))
        if kept is not None:
            stream.states.append(state(str(seed), partition, end, **kept))
    rng.shuffle(stream.headers)
    return stream


SEEDS = range(40)
STREAMS = {str(seed): chance_stream(seed) for seed in SEEDS}


@pytest.fixture(scope="module")
def chances(spark):
    """The plan of all random streams, for each seed."""
    return by_topic(spark, STREAMS)


def in_driver(stream):
    """The log ends of the partitions that may be fetched, and what the driver appends to them."""
    of_us = [row for row in stream.metadata if row["leader"] == LEADER and BROKER in row["replicas"]]
    epochs = {partition_of(row): row["leader_epoch"] for row in of_us}
    ends = {
        partition_of(row): LogEnd(row["log_end_offset"], row["chain"])
        for row in stream.states
        if row["state"] == "Fetching" and epochs.get(partition_of(row)) == row["leader_epoch"]
    }
    fields = FetchedBatch._fields[1:]
    in_order = sorted(stream.headers, key=lambda row: (row["chain"], row["segment"]))
    batches = [FetchedBatch(partition_of(row), *(row[field] for field in fields)) for row in in_order]
    return ends, plan_appends(batches, ends)


def partition_of(row):
    return TopicIdPartition(row["topic_id"], row["partition"])


def partitions_with(rows, *actions):
    return {partition_of(row) for row in rows if row.action in actions}


@pytest.mark.parametrize("seed", SEEDS)
def test_ft_10_the_frame_appends_what_the_driver_appends_and_stops_where_it_stops(chances, seed):
    rows, (ends, plan) = chances[str(seed)], in_driver(STREAMS[str(seed)])
    fields = ("base_offset", "last_offset", "chain", "segment")
    appended = [(partition_of(row), *(row[field] for field in fields)) for row in rows if row.action == APPEND]
    planned = [(b.topic_id_partition, *(getattr(b, field) for field in fields)) for b in plan.batches]
    assert sorted(appended) == sorted(planned)
    assert partitions_with(rows, GAP) == plan.gaps
    assert partitions_with(rows, DIVERGED) == plan.diverged
    assert partitions_with(rows, APPEND, SKIP, GAP, DIVERGED) == partitions_with(rows, *ACTIONS) & ends.keys()


def test_ft_10_the_random_streams_have_all_actions(chances):
    count = Counter(row.action for rows in chances.values() for row in rows)
    assert count.keys() == ACTIONS
    assert min(count.values()) > 20, count
    assert sum(count.values()) == sum(len(stream.headers) for stream in STREAMS.values())
