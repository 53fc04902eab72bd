"""The controller deletes the table of members of a group that nobody uses, and whoever comes back joins another one."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lakelog.replication.clients.client_config import ConsumerConfig
from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.clients.group_membership import GroupMembership, remove_members
from lakelog.replication.config import Config
from lakelog.replication.controller.group_expiration import GroupExpiration
from lakelog.replication.errors import GroupNotEmptyException, KafkaStorageException, UnknownMemberIdException
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.local_root import LocalRoot
from lakelog.replication.storage.delta.log_recovery import find_end
from lakelog.replication.storage.delta.quorum_member import FOLDER
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.tables import group_tables
from lakelog.replication.storage.tables.group_tables import CommittedOffset, GroupTable, MemberTable, groups_with_tables
from tests.clock import Clock
from tests.processes import race, wait_until

CHECK, DAY, WEEK = 600, 24 * 3600, 7 * 24 * 3600
PLACES = ("north", "west", "south")
_TXNS, _GROUP = group_tables._txns, MemberTable._group
POLLS = 8  # one reads the members, the others delete


class Group:
    """The group g in a cluster, and a controller's checks of it."""

    def __init__(self, uri):
        self.uri, self.clock = uri, Clock()
        format_cluster(storage_root(uri, "cluster", Config()), Config())
        self.cluster = Cluster.open(uri)
        self.fail_over()

    def fail_over(self, **settings):
        config = Config.from_properties(settings)
        self.controller = GroupExpiration(Cluster.open(self.uri, config), 1, self.clock)

    def check_until(self, *folders):
        """Checks again and again, and no time passes in which members would die."""
        self.fail_over(**{"offsets.retention.check.interval.ms": "1"})
        wait_until(
            lambda: self.check(0.001) or self.folders() == [list(folders)] * len(self.parts()), f"the tables {folders}"
        )

    def check_beside(self, member, *folders):
        """Checks until the roots have these tables, while the member lives, and those of others die."""
        of_each = [list(folders)] * len(self.parts())
        wait_until(lambda: member.beat() or self.check() or self.folders() == of_each, f"the tables {folders}")

    def check(self, after=CHECK):
        self.clock.now += after
        for _ in range(POLLS):
            self.controller.check_if_due()

    def expire(self):
        for after in (CHECK, DAY + 1):
            self.check(after)

    def member(self):
        return GroupMembership(Cluster.open(self.uri), "g", ConsumerConfig())

    def come_and_go(self):
        member = self.member()
        member.join(["t"])
        self.cluster.groups.claim("g", member.group.generation)
        member.leave()
        return member

    def commit(self):
        self.cluster.groups.commit([CommittedOffset("g", "t", "t-id", 0, 5)])

    def parts(self):
        return [Path(part.uri) for part in self.cluster.root.parts]

    def folders(self):
        return [sorted(each.name for each in (part / "members").glob("*")) for part in self.parts()]

    def has(self, *folders):
        """Whether all roots have these tables of members: one of three may get or lose them a moment later."""
        wait_until(lambda: self.folders() == [list(folders)] * len(self.parts()), f"{folders}, not {self.folders()}")
        return True

    def now(self):
        """The group as a client sees it that opens the cluster now."""
        return GroupAccess(Cluster.open(self.uri), "g").refresh()


@pytest.fixture(params=["one root", "three roots"])
def group(root, request):
    places = [f"{root}/{place}/cluster" for place in PLACES]
    return Group(places[0] if request.param == "one root" else ",".join(places))


@pytest.fixture
def three(root):
    return Group(",".join(f"{root}/{place}/cluster" for place in PLACES))


def test_ap_04_the_table_of_a_group_that_nobody_uses_is_deleted_after_a_day(group, caplog):
    before = group.come_and_go().group.generation
    with caplog.at_level(logging.INFO):
        group.check()
        group.check(DAY - 1)
        assert group.has("g")
        group.check()
    assert group.has()
    assert "group g: its table " in caplog.text
    assert groups_with_tables(group.cluster.root) == []
    assert group.now().members == ()
    member = group.member()
    member.join(["t"])
    assert group.has("g=n1")
    assert (groups_with_tables(group.cluster.root), len(group.now().members)) == (["g"], 1)
    assert member.group.generation > before, "no zombie may commit"
    member.leave()
    group.expire()
    assert group.has()
    group.come_and_go()
    assert group.has("g=n2")


USES = {
    "a member": lambda group: group.member().join(["t"]),
    "a member that has left since": Group.come_and_go,
    "an offset": Group.commit,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_ap_04_each_use_of_a_group_keeps_its_table(group, use):
    group.come_and_go()
    group.check()
    group.check(DAY - 1)
    use(group)
    group.check()
    assert group.has("g")


def test_ap_04_a_group_with_offsets_keeps_its_table_until_they_expire(group):
    group.come_and_go()
    group.commit()
    for after in (CHECK, WEEK - CHECK, CHECK - 1):
        group.check(after)
    assert group.has("g")
    group.check()
    assert group.cluster.groups.committed("g") == {}
    group.check(DAY)
    assert group.has()


def test_ap_04_the_last_members_are_removed_before_their_table_is_deleted(group):
    member = group.member()
    member.join(["t"])
    for after in (CHECK, CHECK, DAY):
        group.check(after)
    assert group.has()
    with pytest.raises(UnknownMemberIdException, match="nobody has used that for a while"):
        member.beat()
    member.join(["t"])
    member.beat()
    assert (member.table.number, [m.member_id for m in group.now().members]) == (1, [member.member_id])


def crash_at(monkeypatch, number):
    """The process dies in the place of its write with this number. Returns how many it has made."""
    made = []

    def dying(write):
        def call(root, *given):
            if "/brokers/" not in root.uri:
                made.append(root.uri)
            if len(made) > number:
                raise KafkaStorageException("the process is dead")
            return write(root, *given)

        return call

    for name in ("put", "put_if_absent", "delete", "delete_folder"):
        monkeypatch.setattr(LocalRoot, name, dying(getattr(LocalRoot, name)))
    return made


def come_and_go_with_checkpoints(group, monkeypatch):
    """Returns the newest version of the table."""
    monkeypatch.setattr("lakelog.replication.storage.delta.delta_log.CHECKPOINT_COMMITS", 1)
    table = group.member().table
    for _ in range(2):
        group.come_and_go()
        table.refresh()
        table.maintain()
    group.come_and_go()
    table.refresh()
    assert len(list((group.parts()[0] / "members" / "g" / "_delta_log").glob("*.checkpoint.parquet"))) == 2
    return table.version


@pytest.mark.parametrize("checkpoint", [False, True], ids=["commits alone", "a checkpoint"])
@pytest.mark.parametrize("comes_back", [False, True], ids=["nobody comes back", "a member comes back"])
def test_ap_04_a_controller_that_dies_between_two_writes_leaves_a_table_that_the_next_one_deletes(
    root, monkeypatch, checkpoint, comes_back
):
    """At each write. A member that comes back then joins a table that stays."""
    number, is_over = 0, False
    while not is_over:
        group = Group(f"{root}/{number}/cluster")
        member = group.come_and_go()
        if checkpoint:
            come_and_go_with_checkpoints(group, monkeypatch)
        group.check()
        with monkeypatch.context() as patched:
            made = crash_at(patched, number)
            group.check(DAY)
        is_over, number = len(made) <= number, number + 1
        group.fail_over()
        if comes_back:
            heir = group.member()
            heir.join(["t"])
            assert heir.group.generation > member.table.group.generation
            assert [m.member_id for m in group.now().members] == [heir.member_id]
            group.check()
            heir.beat()
            assert group.has("g" if heir.table.number == 0 else "g=n1")
            heir.leave()
        group.expire()
        assert group.has()
        assert group.now().members == ()
    assert number > 4


def test_ap_04_a_table_that_is_half_deleted_is_no_older_one(group, monkeypatch):
    """After any of the files that `delete_table` deletes one by one: it is read to its end, or not at all."""
    newest = come_and_go_with_checkpoints(group, monkeypatch)
    folder = group.parts()[0] / "members" / "g"
    root, seen = LocalRoot(str(folder)), set()
    delete = LocalRoot.delete

    def look(self, name):
        delete(self, name)
        seen.add(MemberTable.open(group.cluster.root, "g").version if find_end(root).last >= 0 else None)

    with monkeypatch.context() as patched:
        patched.setattr(LocalRoot, "delete", look)
        root.delete_table()
    assert seen == {newest, None}
    assert not folder.exists()


def once_before(monkeypatch, of, name, work, when=lambda *_: True):
    """Does other work before the first call of a method, as if the process had slept there."""
    method = getattr(of, name)

    def late(*given, **named):
        if when(*given):
            monkeypatch.setattr(of, name, method)
            work()
        return method(*given, **named)

    monkeypatch.setattr(of, name, staticmethod(late) if hasattr(method, "__self__") else late)
    return method


SLEEPS = {
    "before it opens the table": (MemberTable, "open_or_create", lambda *_: True),
    "before it joins": (MemberTable, "change", lambda *given: given[2] == "join"),
    "before its commit": (DeltaLog, "commit", lambda *given: given[1]["why"].startswith("join")),
}


@pytest.mark.parametrize("sleep", SLEEPS.values(), ids=SLEEPS)
def test_ap_04_a_member_that_sleeps_while_its_table_is_deleted_joins_the_next_one(group, monkeypatch, sleep):
    of, name, when = sleep
    before = group.come_and_go().group.generation
    group.check()
    late = group.member()
    method = once_before(monkeypatch, of, name, lambda: group.check(DAY), when)
    if name == "open_or_create":
        late = group.member()
    late.join(["t"])
    assert getattr(of, name) == method
    assert (late.table.number, [m.member_id for m in group.now().members]) == (1, [late.member_id])
    assert late.group.generation > before
    group.check_beside(late, "g=n1")


def test_ap_04_a_member_that_makes_a_deleted_table_again_joins_the_next_one(group, monkeypatch):
    """It sleeps before it makes the first table, while others make it, leave it, and the controller deletes it."""

    def meanwhile():
        group.come_and_go()
        group.expire()
        assert group.has()

    method = once_before(monkeypatch, MemberTable, "create", meanwhile)
    late = group.member()
    assert MemberTable.create == method
    assert group.has("g")
    late.join(["t"])
    assert (late.table.number, [m.member_id for m in group.now().members]) == (1, [late.member_id])
    group.check_beside(late, "g=n1")


def test_ap_04_a_member_that_joins_while_the_controller_closes_the_table_keeps_it(group, monkeypatch):
    group.come_and_go()
    group.check()
    member = group.member()
    once_before(monkeypatch, DeltaLog, "commit", lambda: member.join(["t"]), lambda *given: given[1]["why"] == "close")
    group.check(DAY)
    member.beat()
    assert (member.table.number, [m.member_id for m in group.now().members]) == (0, [member.member_id])
    assert group.has("g")


def test_ap_04_clients_that_know_the_deleted_table_go_on(group):
    """Also if the newest commit that they have seen was one of it: another root would lack it, too."""
    late, outside = group.come_and_go(), GroupAccess(group.cluster, "g")
    assert outside.refresh().generation == late.group.generation
    group.expire()
    assert group.has()
    assert late._cluster.metadata.refresh() is False
    assert outside.refresh().members == ()
    outside.remove_dead_members()
    group.commit()
    late.join(["t"])
    assert [m.member_id for m in outside.refresh().members] == [late.member_id]
    late._cluster.groups.claim("g", late.group.generation)
    with pytest.raises(UnknownMemberIdException):
        group.commit()
    remove_members(group.cluster, late.table, "g", lambda _: {late.member_id})
    group.commit()


def test_ap_04_a_member_that_joins_while_another_client_looks_for_members_is_not_fenced(group, monkeypatch):
    """It makes the next table, which the client has not found yet."""
    group.come_and_go()
    group.expire()
    assert group.has()
    outside, joined = GroupAccess(Cluster.open(group.uri), "g"), []

    def meanwhile():
        joined.append(group.member())
        joined[0].join(["t"])
        group.cluster.groups.claim("g", joined[0].group.generation)

    once_before(monkeypatch, GroupTable, "newest_fence", meanwhile)
    with pytest.raises(GroupNotEmptyException, match="has live members"):
        outside.remove_dead_members()
    offset = CommittedOffset("g", "t", "t-id", 0, 5)
    group.cluster.groups.commit([offset], generation=joined[0].group.generation)


def come_and_go_often(start, uri, last):
    """Until the group has its table of this number. Returns how often it was no member of the newest table after it had
    joined."""
    cluster, lost = Cluster.open(uri), 0
    start()
    while cluster.groups.newest_table_number("g") < last:
        member = GroupMembership(cluster, "g", ConsumerConfig())
        member.join(["t"])
        lost += member.member_id not in {m.member_id for m in GroupAccess(cluster, "g").refresh().members}
        member.beat()
        member.leave()
    return lost


def test_ap_04_members_join_while_a_controller_deletes_their_tables(group, monkeypatch):
    """Real processes, and a controller that deletes the table as soon as nobody is there."""
    monkeypatch.setattr("lakelog.replication.controller.group_expiration._UNUSED_SECONDS", 0.0)
    group.fail_over(**{"offsets.retention.check.interval.ms": "1"})
    assert race(come_and_go_often, *[(group.uri, 4)] * 2, meanwhile=lambda: group.check(0.01)) == [0, 0]
    group.check(0.01)
    group.check(0.01)
    assert group.has()


def test_ap_04_the_table_of_a_group_in_an_object_store_is_deleted_and_those_of_others_stay(s3_options, monkeypatch):
    """Their names begin with the name of the deleted one."""
    for name, value in s3_options.items():
        monkeypatch.setenv(f"LAKELOG_STORAGE_CLUSTER_{name}", value)
    group = Group("s3://bucket/unused-groups/cluster")
    members = group.cluster.root.child("members")
    group.come_and_go()
    other = GroupMembership(Cluster.open(group.uri), "g2", ConsumerConfig())
    group.cluster.groups.commit([CommittedOffset("g2", "t", "t-id", 0, 5)])
    group.expire()
    assert members.list() == ["g2"]
    member = group.member()
    member.join(["t"])
    other.join(["t"])
    MemberTable.create(group.cluster.root, "g")
    group.check()
    assert members.list() == ["g2", "g=n1"]
    member.beat()
    other.beat()


def test_ap_04_a_root_gets_others_although_a_controller_has_died_while_it_deleted_a_table(root, monkeypatch):
    """At each write."""
    number, is_over = 0, False
    while not is_over:
        first, *others = (f"{root}/{number}/{place}/cluster" for place in PLACES)
        group = Group(first)
        before = group.come_and_go().group.generation
        group.check()
        with monkeypatch.context() as patched:
            made = crash_at(patched, number)
            group.check(DAY)
        is_over, number = len(made) <= number, number + 1
        assert RootChanges(Cluster.open(first)).add(others)
        group = replaced(group, ",".join([first, *others]))
        heir = group.member()
        heir.join(["t"])
        assert heir.group.generation > before
        group.check_until("g" if heir.table.number == 0 else "g=n1")
        assert [m.member_id for m in group.now().members] == [heir.member_id]
    assert number > 3


def replaced(group, uri):
    """The same group in a cluster whose roots have changed."""
    group.uri, group.cluster = uri, Cluster.open(uri)
    group.fail_over()
    return group


def votes(group):
    return [sorted(each.name for each in (part / FOLDER / "members").glob("*")) for part in group.parts()]


@pytest.mark.parametrize("place", range(3), ids=PLACES)
@pytest.mark.parametrize("since", ["before the group", "before the deletion"])
def test_ap_04_a_root_that_was_away_during_the_deletion_loses_the_table_when_it_is_back(three, place, since):
    """It knows neither, or the group alone. When it makes the commits of the table `cluster` good, it makes the table
    again that the others have deleted."""
    part = three.parts()[place]
    away = part.parent / "away"
    if since == "before the group":
        part.rename(away)
    before = three.come_and_go().group.generation
    if since == "before the deletion":
        assert three.has("g")
        part.rename(away)
    three.fail_over()
    three.expire()
    assert [found for each, found in zip(three.parts(), three.folders(), strict=True) if each != part] == [[], []]
    away.rename(part)
    for name in ("h", "i"):
        GroupMembership(Cluster.open(three.uri), name, ConsumerConfig()).join(["t"])
    heir = three.member()
    heir.join(["t"])
    assert (heir.table.number, heir.group.generation > before) == (1, True)
    three.check_until("g=n1", "h", "i")
    wait_until(lambda: votes(three) == [["g=n1", "h", "i"]] * 3, "and the same votes")
    heir.beat()
    assert [m.member_id for m in three.now().members] == [heir.member_id]


def test_ap_04_a_member_that_sleeps_joins_the_next_table_although_a_root_that_was_away_has_the_deleted_one(
    three, monkeypatch
):
    three.come_and_go()
    assert three.has("g")
    three.check()
    part, late = three.parts()[0], three.member()
    away = part.parent / "away"

    def meanwhile():
        part.rename(away)
        three.check(DAY)
        away.rename(part)
        assert [bool(found) for found in three.folders()] == [True, False, False]

    once_before(monkeypatch, DeltaLog, "commit", meanwhile, lambda *given: given[1]["why"].startswith("join"))
    late.join(["t"])
    late.beat()
    assert (late.table.number, [m.member_id for m in three.now().members]) == (1, [late.member_id])
    three.check_beside(late, "g=n1")


def test_ap_04_a_root_is_replaced_after_tables_were_deleted(three, root):
    three.come_and_go()
    three.expire()
    assert three.has()
    shutil.rmtree(three.parts()[1])
    old, new = str(three.parts()[1]), f"{root}/east/cluster"
    assert RootChanges(Cluster.open(three.uri)).replace(old, new)
    three.uri = three.uri.replace(old, new)
    three.cluster = Cluster.open(three.uri)
    three.come_and_go()
    three.check_until("g=n1")
    three.fail_over()
    three.expire()
    assert three.has()


def of_an_older_version(monkeypatch):
    """What an older version does: it knows the first table alone, and leaves out what it does not know."""
    monkeypatch.setattr(GroupTable, "newest_table_number", lambda *_: 0)
    monkeypatch.setattr(
        group_tables, "_txns", lambda before, after, _: {
            app_id: version for app_id, version in _TXNS(before, after, 0).items() if app_id != "movable"
        }
    )  # fmt: skip
    monkeypatch.setattr(MemberTable, "_group", lambda table, rows: replace(_GROUP(table, rows), is_closed=False))


def test_ap_04_a_group_that_an_older_version_has_used_last_keeps_its_table(group, monkeypatch):
    """Members of that version would go on there."""
    with monkeypatch.context() as patched:
        of_an_older_version(patched)
        group.come_and_go()
    group.expire()
    assert group.has("g")
    member = group.member()
    member.join(["t"])
    with monkeypatch.context() as patched:
        of_an_older_version(patched)
        group.come_and_go()
    member.leave()
    group.expire()
    assert group.has("g"), "both have used it"
    before = group.come_and_go().group.generation
    group.expire()
    assert group.has()
    assert group.now().members == ()
    assert group.cluster.groups.newest_table_number("g") == 1
    heir = group.come_and_go()
    assert heir.group.generation > before


def test_ap_04_a_member_of_an_older_version_in_a_former_table_is_left_alone_and_named(group, monkeypatch, caplog):
    group.come_and_go()
    group.expire()
    with monkeypatch.context() as patched:
        of_an_older_version(patched)
        older = group.member()
        older.join(["t"])
    for _ in range(3):
        group.check()
        with monkeypatch.context() as patched:
            of_an_older_version(patched)
            older.beat()
    assert f"group g: member {older.member_id} on " in caplog.text
    assert group.has("g")
    for _ in range(2):
        group.check()
    assert group.has(), "it is dead"
