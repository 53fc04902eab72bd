"""`lakelog cluster-roots` on three and five real folders, while a process uses the cluster."""

import itertools
import json
import shlex
import shutil
from pathlib import Path

import pytest

from lakelog.jobs import cluster_roots, format, status, topics
from lakelog.replication.config import Config
from lakelog.replication.errors import InconsistentClusterIdException, InvalidRequestException, KafkaStorageException
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.storage import root_changes
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root
from lakelog.replication.storage.delta import known_roots, quorum_member
from lakelog.replication.storage.delta.cluster_quorum import ClusterQuorum
from lakelog.replication.storage.delta.commit import ROOTS
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.quorum_member import QuorumMember
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.root_identity import read_identity, share_a_store
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.schemas import FORMAT_VERSION, QUORUM_FORMAT
from tests.jobs.conftest import Run
from tests.pages import commands
from tests.storage.delta.test_cluster_quorum import add, names

CONFIG = Config(lakelog_storage_timeout_ms=60_000)


class Lake:
    """A cluster whose roots are the folders a, b and c; a broker has registered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uris = [str(folder / name) for name in "abc"]
        self.cluster_id = format_cluster(storage_root(self.all, "cluster", CONFIG), CONFIG)
        row = BrokerRegistration(1, str(folder / "broker-1"), None, 1, -1, False, None, "id", 0)
        root = self.opened().root
        BrokerTable.open_or_create(root, 1).register(lambda _: row)
        root.quorum.flush()  # tests delete roots

    @property
    def all(self) -> str:
        return ",".join(self.uris)

    def opened(self, *names: str) -> Cluster:
        uri = ",".join(str(self.folder / name) for name in names) or self.all
        return Cluster.open(uri, CONFIG)

    def voting(self) -> dict[str, set[str]]:
        """The names of the folders that the newest commit of each table names, by table, as each of them has it."""
        found: dict[str, set[str]] = {}
        members = [QuorumMember(StorageRoot.of(str(path))) for path in self.folder.iterdir() if path.is_dir()]
        uris = {identity: Path(m.root.uri).name for m in members if (identity := m.identity()) is not None}
        names = {name for member in members for name in member.tables()}
        for table in names:
            folders = [member.root.child(*table) for member in members if member.newest(table) >= 0]
            newest = max(folders, key=last_version)
            roots = read_commit(newest, last_version(newest)).info[ROOTS]
            found["/".join(table)] = {uris.get(root, root) for root in roots}
        return found

    def is_decided_by(self, names: str) -> bool:
        voting = self.voting()
        assert len(voting) == 9  # those of the cluster, and that of the broker
        return all(roots == set(names) for roots in voting.values())


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(known_roots, "_AWAY_SECONDS", 0.0)
    return Lake(tmp_path / "lake")


@pytest.fixture
def on_lake(lake: Lake, lakelog: Run) -> Run:
    return lambda *words: lakelog(cluster_roots, "--cluster", lake.all, *words)


def rows(out: str) -> dict[str, dict[str, object]]:
    return {Path(row["uri"]).name: row for row in json.loads(out)}


def test_it_shows_who_votes_and_who_is_behind_and_which_root_is_away_or_emptied(lake: Lake, on_lake: Run) -> None:
    code, out, err = on_lake()
    assert code == 0
    assert [line.split()[1:] for line in out.splitlines()[2:]] == [["yes", "0"]] * 3
    assert f"--cluster {lake.all}" in err
    Path(lake.uris[2]).rename(f"{lake.uris[2]}.away")
    producers = lake.opened().producers
    add(producers, "p")
    assert "--cluster" not in on_lake()[2]  # two roots are no list
    code, out, _ = on_lake("-o", "json")
    found = rows(out)
    assert code == 1
    assert [found[name]["votes"] for name in "abc"] == [True, True, False]
    assert "must be replaced" in found["c"]["error"]
    shutil.rmtree(lake.uris[2], ignore_errors=True)
    Path(f"{lake.uris[2]}.away").rename(lake.uris[2])
    assert rows(on_lake("-o", "json")[1])["c"]["commits_behind"] in (0, 1)


def test_status_shows_the_roots_of_a_cluster_with_several_and_what_to_do_about_one(lake: Lake, lakelog: Run) -> None:
    uri, gone = lake.uris[0], Path(lake.uris[2])
    _, out, _ = lakelog(status, "--cluster", uri)
    assert [line.split()[1:] for line in out.splitlines() if line.startswith(str(lake.folder))] == [["yes", "0"]] * 3
    assert "cluster root " not in out
    shutil.rmtree(gone)
    code, out, _ = lakelog(status, "--cluster", uri, "-o", "json")
    found = json.loads(out)
    assert code == 1
    assert [row["votes"] for row in found["roots"]].count(True) == 2
    problem = found["problems"][0]
    assert problem["what"].startswith(f"cluster root {gone}: is not the root that has voted")
    command = shlex.split(problem["do"].partition("`")[2].rstrip("`"))
    assert command[:2] == ["lakelog", "cluster-roots"]
    assert lakelog(cluster_roots, *command[2:])[0] == 0
    assert "cluster root " not in lakelog(status, "--cluster", uri)[1]


def test_a_cluster_with_one_root_is_shown_as_one_that_votes_and_gets_two_more(tmp_path: Path, lakelog: Run) -> None:
    a, b, c = (str(tmp_path / name) for name in "abc")
    format_cluster(StorageRoot.of(a), Config())
    code, out, _ = lakelog(cluster_roots, "--cluster", a, "-o", "json")
    assert code == 0
    assert [(row["uri"], row["votes"], row["commits_behind"]) for row in json.loads(out)] == [(a, True, 0)]
    code, _, err = lakelog(cluster_roots, "--cluster", a, "--remove", b, c)
    assert (code, "is the only root of its cluster; --add URI URI lets two more roots vote" in err) == (1, True)
    (documented,) = (line for line in commands("disaster.md") if " --add " in line)
    words = [str(tmp_path / word[1]) if word.endswith("/cluster") else word for word in shlex.split(documented)[2:]]
    assert words == ["--cluster", a, "--add", b, c]
    for _ in range(2):
        code, out, err = lakelog(cluster_roots, *words)
        assert code == 0
        assert f"Give processes that you start --cluster {a},{b},{c}" in err
    assert "Nothing was left to do" in err
    assert err.count("are on one device or in one bucket, so they are lost together") == 3
    code, out, _ = lakelog(cluster_roots, "--cluster", c, "-o", "json")
    assert [(row["uri"], row["votes"]) for row in json.loads(out)] == [(c, True), (a, True), (b, True)]


@pytest.mark.parametrize("kind", ["emptied", "restored", "without its votes", "elsewhere", "in good order"])
def test_a_root_is_replaced_while_a_process_goes_on_and_the_others_may_then_be_lost(
    lake: Lake, on_lake: Run, kind: str
) -> None:
    a, new = Path(lake.uris[0]), Path(lake.uris[0])
    shutil.copytree(a, lake.folder.with_name("backup"))
    table = lake.opened("b", "a", "c").producers
    add(table, "first")
    if kind in ("emptied", "restored"):
        shutil.rmtree(a)
        a.mkdir()
    if kind == "restored":
        shutil.copytree(lake.folder.with_name("backup"), a, dirs_exist_ok=True)
    if kind == "without its votes":
        shutil.rmtree(a / "_quorum")
    if kind in ("elsewhere", "in good order"):
        new = lake.folder / "d"
    if kind == "elsewhere":
        shutil.rmtree(a)
    code, out, err = on_lake("--replace", a, new, "-o", "json")
    assert (code, err) == (0, "")
    assert {name for name, row in rows(out).items() if row["votes"]} == {new.name, "b", "c"}
    assert lake.is_decided_by(f"{new.name}bc")
    assert json.loads((new / "_quorum/addresses.json").read_text()).keys() == set(
        json.loads((Path(lake.uris[1]) / "_quorum/addresses.json").read_text())
    )
    add(table, "second")
    Path(lake.uris[1]).rename(lake.folder.with_name("b.lost"))
    assert names(lake.opened(new.name).producers) == ["first", "second"]
    add(table, "third")
    assert [row["name"] for row in lake.opened("c").producers.rows] == ["first", "second", "third"]


@pytest.mark.parametrize("after", range(4, 22))
def test_a_replacement_that_is_interrupted_anywhere_is_finished_by_the_same_command(
    lake: Lake, on_lake: Run, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    shutil.rmtree(lake.uris[0])
    left, plain = after, root_changes.change_roots

    def interrupted(call):
        def work(*words, **more):
            nonlocal left
            left -= 1
            if left < 0:
                raise KafkaStorageException("interrupted")
            return call(*words, **more)

        return work

    with monkeypatch.context() as patch:
        for name in ("clear", "format", "note_addresses"):
            patch.setattr(QuorumMember, name, interrupted(getattr(QuorumMember, name)))
        patch.setattr(root_changes, "change_roots", interrupted(plain))
        on_lake("--replace", lake.uris[0], lake.uris[0])
    add(lake.opened().producers, "meanwhile")
    assert on_lake("--replace", lake.uris[0], lake.uris[0])[0] == 0
    assert lake.is_decided_by("abc")
    code, _, err = on_lake("--replace", lake.uris[0], lake.uris[0])
    assert code == 0
    assert "Nothing was left to do" in err
    assert names(lake.opened("a").producers) == ["meanwhile"]


@pytest.mark.parametrize("words", ["--replace {d} {c}", "--add {c} {e}", "--remove {d} {e}"])
def test_a_change_first_finishes_one_that_was_interrupted(
    lake: Lake, on_lake: Run, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A root that votes no more on the table `cluster` still does on others, and loses no votes until it does not."""
    c, d, e = (lake.folder / name for name in "cde")
    add(lake.opened().producers, "first")
    plain, clear, voting = root_changes.change_roots, QuorumMember.clear, []

    def interrupted(quorum: ClusterQuorum, table: tuple[str, ...], *roots: tuple[str, ...]) -> bool:
        if table != ("cluster",):
            raise KafkaStorageException("interrupted")
        return plain(quorum, table, *roots)

    def cleared(member: QuorumMember) -> None:
        voting.append({name for names in lake.voting().values() for name in names} & {Path(member.root.uri).name})
        clear(member)

    first = ("--add", d, e) if "remove" in words else ("--replace", c, d)
    with monkeypatch.context() as patch:
        patch.setattr(root_changes, "change_roots", interrupted)
        assert on_lake(*first)[0] == 1
    assert not lake.is_decided_by("abcde" if "remove" in words else "abd")
    assert str(c) in json.loads((lake.folder / "a/_quorum/addresses.json").read_text()).values()
    monkeypatch.setattr(QuorumMember, "clear", cleared)
    assert on_lake(*words.format(c=c, d=d, e=e).split())[0] == 0
    assert not any(voting)
    assert lake.is_decided_by("abcde" if "add" in words else "abc")
    assert names(lake.opened("a").producers) == ["first"]
    noted = json.loads((lake.folder / "a/_quorum/addresses.json").read_text()).values()
    assert {Path(uri).name for uri in noted} == set("abcde" if "add" in words else "abc")


def test_a_root_that_has_a_vote_on_any_table_is_not_cleared(lake: Lake) -> None:
    changes = RootChanges(lake.opened())
    with pytest.raises(InvalidRequestException, match=f"{lake.uris[2]}: has a vote on .*, so it stays as it is"):
        changes._check_no_vote(QuorumMember(StorageRoot.of(lake.uris[2])))


def test_two_roots_are_added_and_others_removed_and_each_command_may_be_given_again(lake: Lake, on_lake: Run) -> None:
    table = lake.opened("a").producers
    add(table, "first")
    d, e = lake.folder / "d", lake.folder / "e"
    for _ in range(2):
        assert on_lake("--add", d, e)[0] == 0
        assert lake.is_decided_by("abcde")
    for name in "ab":
        Path(lake.folder / name).rename(lake.folder.with_name(f"{name}.away"))
    add(table, "second")
    for name in "ab":
        lake.folder.with_name(f"{name}.away").rename(lake.folder / name)
    for _ in range(2):
        assert on_lake("--remove", lake.uris[0], lake.uris[1])[0] == 0
        assert lake.is_decided_by("cde")
    shutil.rmtree(lake.uris[2])
    add(table, "third")
    assert names(lake.opened("d").producers) == ["first", "second", "third"]
    assert names(lake.opened("a").producers) == ["first", "second", "third"]  # a root that was removed knows


def test_the_second_of_five_roots_is_replaced_while_another_one_is_lost_too(lake: Lake, on_lake: Run) -> None:
    d, e, f = (lake.folder / name for name in "def")
    on_lake("--add", d, e)
    shutil.rmtree(lake.uris[0])
    shutil.rmtree(lake.uris[1])
    assert on_lake("--replace", lake.uris[0], f)[0] == 1  # the table shows that b must be replaced, too
    assert on_lake("--replace", lake.uris[1], lake.uris[1])[0] == 0
    assert lake.is_decided_by("fbcde")


REFUSALS = {
    "--replace {lake}/other {lake}/new": "is no root of the cluster; its roots are",
    "--replace {lake}/a {lake}/b": "is a root of the cluster already",
    "--replace {lake}/a {lake}/full": "must be empty to be formatted",
    "--replace {lake}/a {lake}/foreign": "is the root of cluster",
    "--replace {lake}/a {lake}/b/new": "lies in",
    "--replace {lake}/a {lake}/broker-1/new": "the root of broker 1",
    "--remove {lake}/a {lake}/b": "has 3 roots and would have 1: it may have three or five",
    "--remove {lake}/other {lake}/new": "is no root of the cluster",
    "--add {lake}/a {lake}/other": "has 3 roots and would have 4",
    "--add {lake}/other {lake}/other": "is given twice",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_a_change_that_cannot_be_is_refused_in_one_sentence_and_changes_nothing(
    lake: Lake, on_lake: Run, words: str
) -> None:
    (lake.folder / "full").mkdir()
    (lake.folder / "full" / "file").touch()
    format_cluster(StorageRoot.of(str(lake.folder / "foreign")), Config())
    code, out, err = on_lake(*words.format(lake=lake.folder).split())
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert REFUSALS[words] in err
    assert all(row["votes"] for row in rows(on_lake("-o", "json")[1]).values())


def test_a_change_that_would_leave_no_majority_is_not_made(lake: Lake, on_lake: Run) -> None:
    d, e = lake.folder / "d", lake.folder / "e"
    on_lake("--add", d, e)
    shutil.rmtree(lake.uris[0])
    shutil.rmtree(lake.uris[1])
    code, _, err = on_lake("--remove", d, e)
    assert code == 1
    assert "no majority of the 3 roots that are to vote answers" in err
    add(lake.opened("c").producers, "first")


def test_a_replacement_fails_rather_than_leave_a_table_out(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots do not say which tables they have. A table that is left out would go on with the vote of the lost root."""
    tables, asked = QuorumMember.tables, set[str]()

    def fail_once(member: QuorumMember) -> object:
        if member.root.uri not in asked and not member.root.uri.endswith("c"):
            asked.add(member.root.uri)
            raise KafkaStorageException("503 Slow Down")
        return tables(member)

    monkeypatch.setattr(QuorumMember, "tables", fail_once)
    shutil.rmtree(lake.folder / "c")
    changes = RootChanges(lake.opened())
    with pytest.raises(KafkaStorageException, match="no majority"):
        changes.replace(lake.uris[2], lake.uris[2])
    assert changes.replace(lake.uris[2], lake.uris[2])
    assert set(map(frozenset, lake.voting().values())) == {frozenset("abc")}


@pytest.mark.parametrize("after", [0, 13, 20, *range(28, 35), 42])
def test_of_two_changes_at_the_same_time_one_is_refused_and_no_table_keeps_its_roots(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    first, other, calls = RootChanges(lake.opened("b")), RootChanges(lake.opened("c")), itertools.count()

    def happens(quorum: ClusterQuorum) -> None:
        if quorum is first._quorum() and next(calls) == after:
            assert other.replace(lake.uris[1], str(lake.folder / "e"))

    def read(quorum, table, plain=ClusterQuorum.voting):
        found = plain(quorum, table)
        happens(quorum)
        return found

    def change(quorum, *words, plain=root_changes.change_roots):
        happens(quorum)
        return plain(quorum, *words)

    with monkeypatch.context() as patch:
        patch.setattr(root_changes, "change_roots", change)
        patch.setattr(ClusterQuorum, "voting", read)
        with pytest.raises(InvalidRequestException, match="another command has changed the roots"):
            first.replace(lake.uris[0], str(lake.folder / "d"))
    assert next(calls) > after
    voting = {frozenset(roots) for roots in lake.voting().values()}
    assert voting in ({frozenset("aec")}, {frozenset("dec")})


def test_a_table_that_is_made_during_a_change_gets_the_new_roots(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = root_changes.change_roots
    made = []

    def change(quorum, table, *roots):
        if table == ("metadata",):
            made.append(BrokerTable.open_or_create(lake.opened("b").root, 2))
        has_changed = plain(quorum, table, *roots)
        if table == ("cluster",):
            made.append(BrokerTable.open_or_create(lake.opened("c").root, 3))
        return has_changed

    monkeypatch.setattr(root_changes, "change_roots", change)
    assert RootChanges(lake.opened("b")).replace(lake.uris[0], str(lake.folder / "d"))
    voting = lake.voting()
    assert {tuple(sorted(roots)) for roots in voting.values()} == {("b", "c", "d")}
    assert len(voting) == 11
    assert len(made) == 2


@pytest.mark.parametrize("order", [("a", "b", "foreign"), ("foreign", "a", "b"), ("foreign", "c", "nothing")])
@pytest.mark.parametrize("roots", ["", ",/d,/e"])
def test_a_list_with_a_root_of_another_cluster_is_refused(lake: Lake, order: tuple[str, ...], roots: str) -> None:
    uri = str(lake.folder / "foreign")
    uris = ",".join([uri, *(f"{lake.folder}{name}" for name in roots.split(",") if name)])
    format_cluster(storage_root(uris, "cluster", CONFIG), CONFIG)
    with pytest.raises(InconsistentClusterIdException) as error:
        lake.opened(*order)
    assert "give the roots of one cluster" in str(error.value) or "is the only root of its cluster" in str(error.value)


def test_format_makes_several_roots_and_says_which_are_lost_together(tmp_path: Path, lakelog: Run) -> None:
    uris = [str(tmp_path / name) for name in "abc"]
    code, out, err = lakelog(format, "--cluster", ",".join(uris), "--dry-run")
    assert (code, out) == (0, "")
    assert err.count("are on one device or in one bucket, so they are lost together") == 3
    assert not list(tmp_path.iterdir())
    code, out, _ = lakelog(format, "--cluster", ",".join(uris))
    assert (code, out.strip()) == (0, Cluster.open(uris[1]).cluster_id)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("s3://a/x", "s3a://a/y", True),
        ("s3://a/x", "s3://b/x", False),
        ("s3://a/x", "gs://a/x", False),
        ("/tmp/x", "s3://a/x", False),
        ("/proc/x", "/x", False),
    ],
)
def test_roots_share_a_store_in_one_bucket_or_on_one_device(first: str, second: str, expected: bool) -> None:
    assert share_a_store(StorageRoot.of(first), StorageRoot.of(second)) == expected


def test_without_a_majority_a_verb_names_the_roots_that_do_not_answer_and_the_way_out(
    lake: Lake, lakelog: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """What is there may be read. It is said once that it may be old."""
    for uri in lake.uris[:2]:
        Path(uri).rename(f"{uri}.away")
    code, out, err = lakelog(topics, "--cluster", lake.all, "--list")
    assert (code, out, err.count("\n")) == (1, "", 1)
    a, b, c = lake.uris
    assert f"no majority of the 3 cluster roots has answered, as {a} and {b} do not; if they are lost for good, " in err
    assert "`lakelog recover` makes the cluster root again from the roots of the brokers" in err
    told = [record.getMessage() for record in caplog.records if "is read as it was" in record.getMessage()]
    assert [words.partition(" ")[0] for words in told] == [c]
    code, out, _ = lakelog(cluster_roots, "--cluster", lake.all, "-o", "json")
    assert code == 1
    assert [row["votes"] for row in json.loads(out)].count(True) == 1


@pytest.mark.parametrize("nested", ["a/new", "broker-1/new"])
def test_no_root_of_a_list_is_formatted_in_a_root(lake: Lake, lakelog: Run, nested: str) -> None:
    format_broker(StorageRoot.of(str(lake.folder / "broker-1")), lake.cluster_id, 1)
    uris = ",".join(str(lake.folder.parent / name) for name in ("x", f"lake/{nested}", "y"))
    code, out, err = lakelog(format, "--cluster", uris, "--new-cluster")
    assert (code, out, err.splitlines()[-1].count("lies in")) == (1, "", 1)


def test_what_is_no_list_of_the_roots_of_a_cluster(lake: Lake, tmp_path: Path, lakelog: Run) -> None:
    plain, empty = str(tmp_path / "plain"), [str(tmp_path / name) for name in ("e", "f", "g")]
    format_cluster(StorageRoot.of(plain), Config())
    for uris, words in [
        (empty, "nothing is there"),
        ([plain, *empty[:2]], "is the only root of its cluster, so give it without the other ones"),
        ([lake.uris[0], plain, lake.uris[1]], "give the roots of one cluster"),
    ]:
        code, out, err = lakelog(topics, "--cluster", ",".join(uris), "--list")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert words in err


def test_a_list_that_lacks_a_majority_or_is_old_works(lake: Lake, on_lake: Run) -> None:
    """Each root knows where the others are."""
    old = lake.all
    shutil.rmtree(lake.uris[0])
    assert lake.opened("a", "b", "nothing").cluster_id == lake.cluster_id
    assert on_lake("--replace", lake.uris[0], lake.folder / "d")[0] == 0
    shutil.rmtree(lake.uris[1])
    table = Cluster.open(old, CONFIG).producers
    add(table, "first")
    assert names(lake.opened("d").producers) == ["first"]


def test_a_process_that_starts_during_a_change_has_the_roots_that_decide(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, seen = root_changes.change_roots, dict[str, str]()

    def change(quorum, table, *roots):
        seen[table[0]] = lake.opened("b").root.uri
        return plain(quorum, table, *roots)

    monkeypatch.setattr(root_changes, "change_roots", change)
    d = str(lake.folder / "d")
    RootChanges(lake.opened("b")).replace(lake.uris[0], d)
    assert seen.pop("cluster") == lake.all
    assert set(seen.values()) == {",".join([*lake.uris[1:], d])}


def test_an_older_version_refuses_a_cluster_with_several_roots(lake: Lake) -> None:
    for uri in lake.uris:
        assert read_identity(StorageRoot.of(uri))["format_version"] == QUORUM_FORMAT > FORMAT_VERSION


@pytest.mark.parametrize(("new", "has"), [("a", "older files"), ("a", "late writes"), ("d", "nothing")])
def test_a_root_in_a_bucket_is_replaced(
    s3_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, lakelog: Run, new: str, has: str
) -> None:
    """A process that has not noticed that the root was emptied goes on to write there."""
    for name, value in s3_options.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(known_roots, "_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(quorum_member, "_CLEAR_SECONDS", 0.0)
    StorageRoot.of("s3://bucket/roots", s3_options).delete_folder()
    uris = [f"s3://bucket/roots/{name}" for name in "abc"]
    config = Config()
    format_cluster(storage_root(",".join(uris), "cluster", config), config)
    table = Cluster.open(uris[1], config).producers
    add(table, "first")
    StorageRoot.of(uris[0], s3_options).delete_folder()
    if has == "late writes":
        add(table, "late")
        table.root.quorum.flush()
        assert StorageRoot.of(uris[0], s3_options).list() == ["_quorum", "producers"]
        StorageRoot.of(uris[0], s3_options).write("file", b"of somebody else")
        code, _, err = lakelog(cluster_roots, "--cluster", uris[1], "--replace", uris[0], uris[0])
        assert (code, "must be empty to be formatted" in err) == (1, True)
        StorageRoot.of(uris[0], s3_options).delete("file")
    if has == "older files":  # restored without its newest ones
        StorageRoot.of(f"{uris[0]}/cluster", s3_options).write("of-before", b"")
        QuorumMember(StorageRoot.of(uris[0], s3_options)).note_addresses(
            QuorumMember(StorageRoot.of(uris[1], s3_options)).addresses()
        )
    replaced = ("--replace", uris[0], f"s3://bucket/roots/{new}")
    code, out, err = lakelog(cluster_roots, "--cluster", uris[1], *replaced, "-o", "json")
    assert (code, err) == (0, "")
    assert {name for name, row in rows(out).items() if row["votes"]} == {new, "b", "c"}
    add(table, "second")
    StorageRoot.of(uris[1], s3_options).delete_folder()
    late = ["late"] if has == "late writes" else []
    assert names(Cluster.open(f"s3://bucket/roots/{new}", config).producers) == ["first", *late, "second"]
    StorageRoot.of("s3://bucket/roots", s3_options).delete_folder()
