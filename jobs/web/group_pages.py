"""The pages of consumer groups."""

from __future__ import annotations

from lakelog.jobs.consumer_groups import assignment_text
from lakelog.jobs.web.page_kit import Console, Content, PageRequest, Sources, not_found, option, paged, sql_text
from lakelog.replication.errors import LakelogException


def groups(console: Console, request: PageRequest) -> Content:
    """All groups, or the one that the query names: its id may be a text that no path can have."""
    query = request.query
    query.allow("search", "page", "id")
    if query.text("id"):
        return group(console, PageRequest(query.text("id"), query))
    seen, search = console.readings.cluster.get(), query.text("search")
    shown = paged([line for line in seen.groups if search.lower() in line.name.lower()], query)
    facts = {"lines": shown, "search": search, "all": len(seen.groups)}
    sql = ("SELECT * FROM consumer_groups ORDER BY group_id, topic, partition",)
    sources = Sources([console.command("consumer-groups", "--describe", "--all-groups", "--state")], sql)
    return Content("groups.html", "Groups", seen.at, facts, sources)


def group(console: Console, request: PageRequest) -> Content:
    """The partitions and members of one group."""
    request.query.allow("page", "id")
    seen = console.readings.cluster.get()
    name = request.name
    if name not in seen.found.groups:
        raise not_found(f"there is no consumer group {name[:250]}: it has no offsets and no members")
    line = next(found for found in seen.groups if found.name == name)
    shown = paged(seen.partitions_of_group(name), request.query)
    lags = console.readings.lags(name, {(p.topic, p.partition): p.committed for p in shown.items})
    rows = []
    for partition in shown.items:
        lag = lags.get((partition.topic, partition.partition))
        is_known = lag is not None and not isinstance(lag, LakelogException)
        error = f"{lag.name}: {lag}" if isinstance(lag, LakelogException) else None
        rows.append((partition, lag if is_known else None, error))
    members = [
        (member, assignment_text(member.owned), assignment_text({*member.assigned} - {*member.owned}))
        for member in line.group.members
    ]
    facts = {"line": line, "shown": shown, "rows": rows, "members": members}
    commands = [
        console.command("consumer-groups", "--describe", *option("--group", name)),
        console.command("consumer-groups", "--describe", *option("--group", name), "--members", "--verbose"),
    ]
    sql = (
        f"SELECT * FROM consumer_groups WHERE group_id = {sql_text(name)} ORDER BY topic, partition",
        f"SELECT * FROM lag WHERE kind = 'group' AND group_id = {sql_text(name)}",
    )
    return Content("group.html", f"Group {name}", seen.at, facts, Sources(commands, sql))
