"""The pages of topics: the list, and of one topic its partitions, consumers and settings."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.jobs.admin.cluster_status import Partition
from lakelog.jobs.configs import topic_settings
from lakelog.jobs.web.page_kit import (
    Console,
    Content,
    PageError,
    PageRequest,
    Sources,
    not_found,
    option,
    paged,
    sql_text,
)
from lakelog.jobs.web.seen_cluster import SeenCluster, Sizes, TopicFigures, size_of
from lakelog.replication.protocol.topic import DEFAULT_NAME, Topic
from lakelog.replication.protocol.value_schema import shown

SUBSTRING, REGEXP = "substring", "regexp"


def topics(console: Console, request: PageRequest) -> Content:
    """The topics whose names a search finds."""
    query = request.query
    query.allow("search", "by", "page")
    seen, sizes = console.readings.cluster.get(), console.readings.sizes()
    search, by = query.text("search"), query.choice("by", (SUBSTRING, REGEXP))
    shown = paged(_matching(seen.topics, search, by), query)
    found = {}
    for line in shown.items:
        keys = [p.registration.topic_id_partition for p in seen.partitions_by_topic[line.name]]
        found[line.name] = size_of(sizes, keys)
    facts = {
        "lines": shown, "sizes": found, "search": search, "by": by, "all": len(seen.topics),
        "words": (SUBSTRING, REGEXP),
    }  # fmt: skip
    commands = [console.command("topics", "--describe"), console.command("topics", "--list")]
    where = ""
    if search:
        text = sql_text(search)
        where = f" WHERE topic RLIKE {text}" if by == REGEXP else f" WHERE contains(lower(topic), lower({text}))"
    sql = (f"SELECT * FROM topics{where} ORDER BY topic",)
    return Content("topics.html", "Topics", seen.at, facts, Sources(commands, sql))


def _matching(lines: Sequence[TopicFigures], search: str, by: str) -> list[TopicFigures]:
    """The topics that a search finds. pyarrow's expressions are RE2's, whose time is linear in the names, so none can
    keep the console busy."""
    if not search:
        return list(lines)
    if by == SUBSTRING:
        return [line for line in lines if search.lower() in line.name.lower()]
    try:
        found = pc.match_substring_regex(pa.array([line.name for line in lines], pa.string()), pattern=search)
    except pa.ArrowInvalid as error:
        why = str(error).removeprefix("Invalid regular expression: ")
        words = f"parameter search is {search[:60]!r}: this is no regular expression of RE2: {why}"
        raise PageError(400, words) from None
    return [line for line, is_found in zip(lines, found.to_pylist(), strict=True) if is_found]


def topic_of(seen: SeenCluster, name: str) -> tuple[Topic, Sequence[Partition]]:
    """A topic and its partitions. Raises PageError 404."""
    if name not in seen.topics_by_name:
        raise not_found(f"there is no topic {name[:250]}: it was deleted, or never created")
    return seen.topics_by_name[name], seen.partitions_by_topic[name]


def topic(console: Console, request: PageRequest) -> Content:
    """The partitions of a topic, with all their replicas."""
    request.query.allow("page")
    seen, sizes = console.readings.cluster.get(), console.readings.sizes()
    found, partitions = topic_of(seen, request.name)
    shown = paged(partitions, request.query)
    lines = [seen.line_of(partition) for partition in shown.items]
    keys = {p.registration.topic_id_partition: p.registration.leader for p in partitions}
    figures = next(line for line in seen.topics if line.name == found.topic)
    facts = {
        "topic": found, "figures": figures, "shown": shown, "lines": lines,
        "size": size_of(sizes, list(keys)),
        "sizes": {line.judged.registration.topic_id_partition: _primary(sizes, line.judged) for line in lines},
        "min_isr": seen.topic_config(found).min_insync_replicas,
    }  # fmt: skip
    name = found.topic
    commands = [
        console.command("topics", "--describe", *option("--topic", name)),
        console.command("log-dirs", "--describe", *option("--topic-list", name), "-o", "table"),
    ]
    sql = (
        f"SELECT * FROM partitions WHERE topic = {sql_text(name)} ORDER BY partition",
        f"SELECT * FROM replicas WHERE topic = {sql_text(name)} ORDER BY partition, broker_id",
    )
    return Content("topic.html", name, seen.at, facts, Sources(commands, sql))


def _primary(sizes: Sizes, partition: Partition) -> int | None:
    registration = partition.registration
    return size_of(sizes, [registration.topic_id_partition], [registration.leader])


def consumers(console: Console, request: PageRequest) -> Content:
    """The groups that read a topic."""
    request.query.allow()
    seen = console.readings.cluster.get()
    found, _ = topic_of(seen, request.name)
    facts = {"topic": found, "lines": seen.groups_of_topic(found.topic)}
    sql = (f"SELECT * FROM lag WHERE kind = 'group' AND topic = {sql_text(found.topic)}",)
    sources = Sources([console.command("consumer-groups", "--describe", "--all-groups")], sql)
    return Content("topic_consumers.html", f"Consumers of {found.topic}", seen.at, facts, sources)


def topic_configs(console: Console, request: PageRequest) -> Content:
    """The settings of a topic, and where each comes from."""
    request.query.allow()
    seen = console.readings.cluster.get()
    found, _ = topic_of(seen, request.name)
    all_brokers = console.readings.broker_configs.get().get(DEFAULT_NAME, {})
    settings = topic_settings(found.configs, all_brokers, {})
    facts = {"topic": found, "settings": [each._replace(value=shown(each.key, each.value)) for each in settings]}
    command = console.command(
        "configs", "--describe", "--all", "--entity-type", "topics", *option("--entity-name", found.topic)
    )  # fmt: skip
    sql = (f"SELECT configs FROM topics WHERE topic = {sql_text(found.topic)}",)
    return Content("topic_settings.html", f"Settings of {found.topic}", seen.at, facts, Sources([command], sql))
