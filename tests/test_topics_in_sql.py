"""Topics in SQL: views, inserts, the statements of `docs/sql.md`, `docs/typed-values.md` and `docs/debezium.md`, and
those that Spark refuses."""

import re
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException

from lakelog.replication.local_cluster import LocalCluster
from tests.pages import PAGES, blocks


@pytest.fixture(scope="module")
def cluster(spark, tmp_path_factory):
    with LocalCluster(spark, str(tmp_path_factory.mktemp("lake")), brokers=2) as running:
        for topic in ("sql", "orders"):
            running.admin().create_topic(topic, 2, replication_factor=2)
        yield running


def create(spark, cluster, what, topics="subscribe 'sql'"):
    """Makes a view or a table of topics in SQL."""
    spark.sql(f"CREATE {what} USING lakelog OPTIONS (cluster '{cluster.cluster_uri}', {topics})")


@pytest.fixture
def views(spark, cluster):
    """Views of one topic, of all topics, and of one column of a topic."""
    create(spark, cluster, "OR REPLACE TEMPORARY VIEW sql")
    create(spark, cluster, "OR REPLACE TEMPORARY VIEW topics", "subscribePattern '.*'")
    create(spark, cluster, "OR REPLACE TEMPORARY VIEW keys (key BINARY)")
    yield
    for name in ("sql", "topics", "keys"):
        spark.catalog.dropTempView(name)


@pytest.mark.usefixtures("views")
def test_an_insert_into_a_view_appends_to_its_topic_and_the_view_keeps_what_it_has_read(spark, cluster):
    assert spark.sql("SELECT count(*) FROM sql").first()[0] == 0
    for statement in (
        "INSERT INTO sql (value, key) SELECT encode(CAST(id AS STRING), 'utf-8'), X'6B' FROM range(3)",
        "INSERT INTO sql (value, partition) VALUES (X'33', 1)",
        "INSERT INTO sql BY NAME SELECT CAST('4' AS BINARY) AS value",
        "INSERT INTO topics (topic, value) VALUES ('sql', X'35')",
    ):
        spark.sql(statement)
    assert spark.sql("SELECT count(*) FROM sql").first()[0] == 0
    create(spark, cluster, "OR REPLACE TEMPORARY VIEW sql")
    found = spark.sql(
        "SELECT decode(key, 'utf-8') AS key, decode(value, 'utf-8') AS value, partition FROM sql"
    ).collect()
    assert sorted((row["value"], row["key"]) for row in found) == [
        *((str(n), "k") for n in range(3)), ("3", None), ("4", None), ("5", None),
    ]  # fmt: skip
    assert {row["partition"] for row in found if row["value"] == "3"} == {1}


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("INSERT INTO topics (value) VALUES (X'61')", "a record has no topic: column topic is null"),
        ("INSERT INTO topics (topic, value) VALUES ('nobody', X'61')", "no topic nobody; there are: orders, sql"),
        ("INSERT INTO keys VALUES (X'61')", "there is no column value"),
        ("INSERT OVERWRITE sql SELECT * FROM sql", "mode overwrite: a topic cannot be overwritten; allowed: append"),
        ("INSERT INTO sql (value) VALUES ('tea')", 'Cannot safely cast `value` "STRING" to "BINARY"'),
        ("INSERT INTO sql VALUES (X'61')", "not enough data columns"),
    ],
)
@pytest.mark.usefixtures("views")
def test_an_insert_that_cannot_be_is_refused_in_one_sentence(spark, statement, text):
    with pytest.raises(PySparkException) as error:
        spark.sql(statement)
    assert text in str(error.value)
    assert "Traceback" not in str(error.value).partition("JVM stacktrace")[0]


@pytest.fixture
def page(spark, cluster):
    """Reads a page, for the cluster of the tests."""
    home = cluster.cluster_uri.removesuffix("/cluster")
    yield lambda name: [(text.replace("/lake/", f"{home}/"), after) for text, after in blocks(name, "sql", "python")]
    for view in spark.sql("SHOW VIEWS").collect():
        spark.catalog.dropTempView(view["viewName"])


def run(spark, page):
    """Runs the blocks of a page, and compares the rows of its queries with those that it shows. The broker that a query
    reads may lead none of the partitions: it is run for each."""
    names = {"spark": spark}
    for text, after in page:
        if not re.match("(CREATE|INSERT|MERGE|SELECT) ", text):
            exec(compile(text, "page", "exec"), names)
            continue
        brokers = (text, text.replace("/broker-1/", "/broker-2/")) if "/broker-1/" in text else (text,)
        found = [row for query in brokers for row in spark.sql(query).collect()]
        shown = re.match(r"```\n(.*?)^```$", after.lstrip(), re.M | re.S)
        if shown:
            lines = re.findall(r"^\|(.*)\|$", shown[1], re.M)
            rows = [tuple(map(str.strip, line.split("|"))) for line in lines]
            assert [tuple(found[0].asDict()), *(tuple(map(str, row)) for row in sorted(found))] == rows


def test_the_page_on_sql_shows_what_its_statements_return(spark, page, capsys):
    run(spark, page("sql.md"))
    assert capsys.readouterr().out == "3\n"


def test_the_page_on_typed_values_shows_what_its_statements_return(spark, page, capsys):
    run(spark, page("typed-values.md"))
    shown, _, refused = capsys.readouterr().out.rpartition("+\n")
    assert re.findall(r"\|\s*(\d)\|\s*(\w+)\|\s*([\d.]+|NULL)\|", shown) == [
        ("0", "tea", "3.50"), ("1", "coffee", "4.00"), ("2", "tea", "3.00"), ("3", "NULL", "NULL"),
    ]  # fmt: skip
    text = PAGES["typed-values.md"].read_text("utf-8").replace("\n", " ")
    assert f"It prints `{refused.strip()}`" in text


def test_the_page_on_debezium_keeps_a_table_of_the_current_rows(spark, cluster, page, capsys):
    run(spark, page("debezium.md"))
    merges = [text for text, _ in page("debezium.md") if "MERGE INTO" in text]
    assert f'"""\n{merges[0]}"""' in merges[1], "the stream runs the statement of the page"
    shown = re.findall(r"\|\s*(\d)\|\s*(\S+)\|", capsys.readouterr().out)
    assert shown == [("1", "ann@new.example"), ("3", "cleo@new.example")]
    home = cluster.cluster_uri.removesuffix("/cluster")
    kept = spark.read.format("delta").load(f"{home}/customers").orderBy("id").collect()
    assert [tuple(map(str, row)) for row in kept] == shown


def test_the_page_on_typed_values_names_tests_that_exist():
    named = re.findall(r"\| `(test_\w+)` \|$", PAGES["typed-values.md"].read_text("utf-8"), re.M)
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    assert len(named) >= 8
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_the_page_on_sql_shows_how_spark_refuses_what_does_not_work(spark, cluster, page):
    spark.sql(page("sql.md")[0][0])
    home = cluster.cluster_uri.removesuffix("/cluster")
    table = PAGES["sql.md"].read_text("utf-8").partition("<!-- refused -->")[2].partition("<!-- end -->")[0]
    refused = re.findall(r"^\| `+([^|]*?) ?`+ \| (.*?) \| ", table, re.M)
    assert len(refused) == table.count("\n| ") - 1
    wrong = []
    for statement, text in refused:
        try:
            spark.sql(statement.replace("/lake/", f"{home}/"))
            wrong.append((statement, "works"))
        except PySparkException as error:
            if text not in str(error):
                wrong.append((statement, str(error)[:300]))
    assert wrong == []
    create(spark, cluster, "TABLE sql_table (value BINARY)")
    with pytest.raises(AnalysisException, match="lakelog is not a valid Spark SQL Data Source"):
        spark.sql("SELECT * FROM sql_table")
    spark.sql("DROP TABLE sql_table")
