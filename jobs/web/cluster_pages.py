"""The pages of the cluster as a whole: overview, brokers, reassignments, what-if and events."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import line_of, notes, problems, root_row
from lakelog.jobs.admin.heartbeats import ALIVE, STOPPING
from lakelog.jobs.admin.loss_report import LossReport
from lakelog.jobs.admin.prediction import change_row, counts
from lakelog.jobs.admin.reassignment_throttle import REPLICAS
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.verb_parser import root_uri
from lakelog.jobs.cluster_events import alike
from lakelog.jobs.configs import ALL_BROKERS, BROKER, broker_settings
from lakelog.jobs.launch.installed import version
from lakelog.jobs.web.history_pages import event_line
from lakelog.jobs.web.page_kit import Console, Content, PageError, PageRequest, Sources, not_found, option, paged
from lakelog.jobs.web.seen_cluster import BrokerLine, PartitionLine, SeenCluster, size_of
from lakelog.jobs.what_if import LossQuestion
from lakelog.replication.errors import BrokerNotAvailableException, InvalidRequestException, TimeoutException
from lakelog.replication.protocol.reassignment import is_reassigning, original_replicas, target_replicas
from lakelog.replication.protocol.topic import DEFAULT_NAME
from lakelog.replication.storage.readings.metadata_history import ClusterEvent

_LAST_EVENTS, _LOOKED_AT = 10, 2_000  # lines, and events of which they are made
_MOST_ID = 2**31 - 1


def overview(console: Console, request: PageRequest) -> Content:
    """Whether all is well, what to do if it is not, and what happened last."""
    request.query.allow()
    seen = console.readings.cluster.get()
    state, partitions = seen.state, seen.state.partitions
    alive = sum(found.state in (ALIVE, STOPPING) for found in state.brokers.values())
    figures = {
        "online": sum(not p.is_offline for p in partitions),
        "offline": sum(p.is_offline for p in partitions),
        "under_replicated": sum(not p.is_offline and bool(p.out_of_sync) for p in partitions),
        "under_min_isr": sum(p.is_under_min_isr for p in partitions),
        "in_sync": sum(len(p.replicas) - len(p.out_of_sync) for p in partitions),
        "out_of_sync": sum(len(p.out_of_sync) for p in partitions),
    }
    facts = {
        "problems": [(line_of(found), found.do) for found in problems(state, console.invocation)],
        "notes": [(line_of(found), found.do) for found in notes(state, console.invocation)],
        "version": version(),
        "cluster_id": seen.cluster_id,
        "controller": state.controller,
        "brokers": len(state.brokers),
        "alive": alive,
        "partitions": len(partitions),
        "topics": len(seen.topics_by_name),
        "groups": len(seen.found.groups),
        "figures": figures,
        "roots": [root_row(root) for root in state.roots],
        "events": _last_events(console),
    }
    sql = ("SELECT * FROM controller", "SELECT * FROM events ORDER BY at DESC LIMIT 10")
    return Content("overview.html", "Overview", seen.at, facts, Sources([console.command("status")], sql))


def _last_events(console: Console) -> list[tuple[ClusterEvent, str, int]] | None:
    """The last events, equal ones of a commit together with the names of their partitions; None while the history is
    read for the first time."""
    try:
        history = console.readings.history.get()
    except TimeoutException:
        return None
    groups = sorted(alike(history.events[-_LOOKED_AT:]), key=lambda group: group[0].version, reverse=True)[
        :_LAST_EVENTS
    ]
    return [event_line(history, group) for group in groups]


def brokers(console: Console, request: PageRequest) -> Content:
    """All brokers that have registered."""
    request.query.allow()
    seen, sizes = console.readings.cluster.get(), console.readings.sizes()
    lease = seen.state.controller.lease
    facts = {
        "lines": seen.brokers,
        "sizes": {broker: sum(found.sizes.values()) for broker, found in sizes.items()},
        "controller": None if lease is None else lease.controller_id,
        "controller_state": seen.state.controller.state,
    }
    sql = ("SELECT * FROM brokers ORDER BY broker_id",)
    commands = [console.command("brokers"), console.command("log-dirs", "--describe", "--all", "-o", "table")]
    return Content("brokers.html", "Brokers", seen.at, facts, Sources(commands, sql))


def broker(console: Console, request: PageRequest) -> Content:
    """One broker: what it holds, its settings, and what happens if it dies now."""
    request.query.allow("page")
    seen, sizes = console.readings.cluster.get(), console.readings.sizes()
    line = _broker_line(seen, request.name)
    number = line.figures.broker
    held = paged(seen.partitions_of_broker(number), request.query)
    lines = [seen.line_of(found) for found in held.items]
    keys = [found.judged.registration.topic_id_partition for found in lines]
    dynamic = console.readings.broker_configs.get()
    sources = {BROKER: dynamic.get(str(number), {}), ALL_BROKERS: dynamic.get(DEFAULT_NAME, {})}
    own = sizes[number].sizes if number in sizes else None
    facts = {
        "line": line,
        "size": None if own is None else sum(own.values()),
        "held": held,
        "lines": lines,
        "sizes": {key: None if own is None else own.get(key, 0) for key in keys},
        "settings": list(broker_settings(line.seen.registration, sources, {}, seen.config)),
        "loss": _first_loss(console, LossQuestion((number,))),
    }
    commands = [
        console.command("log-dirs", "--describe", "--broker-list", number, "-o", "table"),
        console.command("configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", number),
        console.command("what-if", "--kill", number),
    ]
    sql = (
        f"SELECT * FROM brokers WHERE broker_id = {number}",
        f"SELECT * FROM replicas WHERE broker_id = {number} ORDER BY topic, partition",
    )
    return Content("broker.html", f"Broker {number}", seen.at, facts, Sources(commands, sql))


def _first_loss(console: Console, asked: LossQuestion) -> dict[str, object] | None:
    """The effects of a loss; None while they are predicted for the first time."""
    try:
        return _loss_facts(console.readings.what_if(asked))
    except TimeoutException:
        return None


def _broker_line(seen: SeenCluster, name: str) -> BrokerLine:
    found = {str(line.figures.broker): line for line in seen.brokers}
    if name not in found:
        raise not_found(f"no broker {name[:60]} has registered; there are: {', '.join(found) or 'none'}")
    return found[name]


class Move(NamedTuple):
    """A replica that a reassignment adds. `done`: the percentage of the leader's records that it has; None where that
    is not known."""

    broker: int
    in_sync: bool
    lag: int | None
    done: float | None


class Reassignment(NamedTuple):
    """A partition that moves, with the bytes of its leader's replica; None where they are not known."""

    line: PartitionLine
    before: Sequence[int]
    after: Sequence[int]
    moves: Sequence[Move]
    size: int | None


def reassignments(console: Console, request: PageRequest) -> Content:
    """The partitions that move to other brokers, how far they have come, and what slows them down."""
    request.query.allow("page")
    seen, sizes = console.readings.cluster.get(), console.readings.sizes()
    moving = paged([p for p in seen.state.partitions if is_reassigning(p.registration)], request.query)
    found = []
    for partition in moving.items:
        registration = partition.registration
        line = seen.line_of(partition)
        size = size_of(sizes, [registration.topic_id_partition], [registration.leader])
        moves = [_move(line, broker) for broker in registration.adding_replicas]
        found.append(Reassignment(line, original_replicas(registration), target_replicas(registration), moves, size))
    slowed = [
        line.seen.registration
        for line in seen.brokers
        if (line.seen.registration.leader_replication_quota, line.seen.registration.follower_replication_quota)
        != (None, None)
    ]
    throttled = {
        name: [value for value in map(topic.configs.get, REPLICAS) if value]
        for name, topic in sorted(seen.topics_by_name.items())
        if any(map(topic.configs.get, REPLICAS))
    }
    facts = {"moving": moving, "found": found, "slowed": slowed, "throttled": throttled}
    sql = ("SELECT * FROM partitions WHERE is_reassigning ORDER BY topic, partition",)
    sources = Sources([console.command("reassign-partitions", "--list")], sql)
    return Content("reassignments.html", "Reassignments", seen.at, facts, sources)


def _move(line: PartitionLine, broker: int) -> Move:
    replica = next(found for found in line.replicas if found.broker == broker)
    start, end, row = line.log_start_offset, line.log_end_offset, replica.row
    if start is None or end is None or row is None:
        return Move(broker, replica.in_sync, replica.lag, None)
    has = max(0, row.log_end_offset - start)
    return Move(broker, replica.in_sync, replica.lag, 100.0 if end == start else min(100.0, 100 * has / (end - start)))


def what_if(console: Console, request: PageRequest) -> Content:
    """The state of the cluster after the loss of brokers, of a rack or of roots."""
    request.query.allow("kill", "stop", "rack", "root", "cluster_root", "page")
    number = whole_number(0, _MOST_ID)
    asked = LossQuestion(
        tuple(request.query.several("kill", number)),
        request.query.text("rack") or None,
        tuple(request.query.several("stop", number)),
        request.query.optional("root", _root),
        tuple(request.query.several("cluster_root", _root)),
    )
    seen = console.readings.cluster.get()
    facts: dict[str, object] = {"asked": asked, "report": None}
    report, is_asked = None, asked != LossQuestion((), None, (), None, ())
    if is_asked:
        try:
            report = console.readings.what_if(asked)
        except (InvalidRequestException, BrokerNotAvailableException) as error:
            raise PageError(400, _in_words_of_the_page(str(error))) from None
        except TimeoutException:
            report = None
    facts["is_pending"] = is_asked and report is None
    if report is not None:
        changes = paged(report.changes, request.query)
        rows = [change_row(change) for change in report.changes]
        start = changes.first - 1
        facts |= {
            "report": _loss_facts(report), "changes": changes, "rows": rows[start : start + len(changes.items)],
            "whys": _whys(rows[start : start + len(changes.items)]),
        }  # fmt: skip
    racks = sorted({b.registration.rack for b in seen.state.brokers.values() if b.registration.rack is not None})
    facts |= {
        "brokers": [(line.figures.broker, line.figures.state, line.seen.registration.rack) for line in seen.brokers],
        "racks": racks,
    }
    sources = Sources([console.command("what-if", *_options(asked))])
    return Content("what_if.html", "What if", seen.at, facts, sources)


def _root(text: str) -> str:
    """A type of argparse: a root. The folder in which the console was started is no matter of a page."""
    if "://" not in text and not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is no URI and no absolute path")
    return root_uri(text)


def _in_words_of_the_page(words: str) -> str:
    """The verb's message with the names that the parameters have here."""
    names = {"--kill-rack": "rack", "--lose-root": "root", "--cluster-root": "cluster_root"}
    for word, name in {**names, "--kill": "kill", "--stop": "stop"}.items():
        words = words.replace(word, f"parameter {name}")
    return words


def _options(asked: LossQuestion) -> Iterable[object]:
    """The options of the verb; an example without a question."""
    given: Mapping[str, object] = {
        "--kill": ",".join(map(str, asked.kill)), "--kill-rack": asked.kill_rack,
        "--stop": ",".join(map(str, asked.stop)), "--lose-root": asked.lose_root,
    }  # fmt: skip
    words = [word for name, value in given.items() if value for word in option(name, value)]
    words += [word for root in asked.cluster_root for word in ("--cluster-root", root)]
    return words or ("--kill", 1)


def _loss_facts(report: LossReport) -> dict[str, object]:
    return {
        "is_harmless": report.is_harmless,
        "counts": counts(report.changes),
        "changed": len(report.changes),
        "partitions": len(report.forecast.partitions),
        "roots": report.roots,
        "can_commit": report.forecast.loss.can_commit,
        "seconds": sum(ms for ms, _ in report.delays) / 1000 if report.delays else None,
        "delays": report.delays,
        "notes": report.notes(),
    }


def _whys(rows: Sequence[Mapping[str, object]]) -> list[tuple[object, int]]:
    """The reasons of the changes, each with the number of partitions that have it."""
    found: dict[object, int] = {}
    for row in rows:
        if row["why"]:
            found[row["why"]] = found.get(row["why"], 0) + 1
    return list(found.items())


def events(console: Console, request: PageRequest) -> Content:
    """The events, the newest first."""
    request.query.allow("kind", "page")
    history = console.readings.history.get()
    kinds = sorted({event.event for event in history.events})
    kind = request.query.text("kind")
    if kind and kind not in kinds:
        there = ", ".join(kinds) or "none, as nothing has happened"
        raise PageError(400, f"parameter kind is {kind[:60]!r}: allowed are {there}")
    found = [event for event in reversed(history.events) if kind in ("", event.event)]
    shown = paged(found, request.query)
    facts = {
        "kinds": kinds,
        "kind": kind,
        "events": shown,
        "lines": [event_line(history, [event]) for event in shown.items],
        "begins_at": history.begins_at,
    }
    where = f" WHERE event = '{kind}'" if kind else ""
    sources = Sources([console.command("events", "--since", "P7D")], (f"SELECT * FROM events{where} ORDER BY at DESC",))
    return Content("events.html", "Events", console.readings.cluster.get().at, facts, sources)
