"""Words of the command line: what is spark-submit's, what is the verb's, and what is refused."""

import shlex
from pathlib import Path

import pytest

from lakelog.jobs.launch.launcher import VERBS, launch
from lakelog.jobs.launch.spark_submit import spark_environment, split_arguments


def words_of(options: list[tuple[str, str]]) -> list[str]:
    return shlex.split(spark_environment(options)["PYSPARK_SUBMIT_ARGS"])


def value(words: list[str], name: str) -> str:
    assert words.count(name) == 1
    return words[words.index(name) + 1]


@pytest.mark.parametrize(
    "words",
    [["--master", "local[3]", "broker", "--broker-id", "2"], ["broker", "--broker-id", "2", "--master=local[3]"]],
)
def test_options_of_spark_submit_stand_before_or_after_the_verb(words: list[str]) -> None:
    assert split_arguments(words) == ([("--master", "local[3]")], ["broker", "--broker-id", "2"])


def test_a_value_may_hold_spaces_and_equals_signs() -> None:
    options, _ = split_arguments(["--conf", "spark.driver.extraJavaOptions=-Da=b -Dc=d"])
    assert value(words_of(options), "--conf") == "spark.driver.extraJavaOptions=-Da=b -Dc=d"


def test_after_two_dashes_everything_is_the_verbs() -> None:
    assert split_arguments(["bench", "--", "--master", "x"]) == ([], ["bench", "--master", "x"])


def test_jars_of_the_user_stand_beside_ours() -> None:
    options, _ = split_arguments(["--jars", "/a b/x.jar", "--conf", "spark.jars=y.jar"])
    assert value(words_of(options), "--jars").startswith("/a b/x.jar,y.jar")


def test_delta_of_the_user_replaces_ours() -> None:
    words = words_of([("--packages", "io.delta:delta-spark_4.2_2.13:4.4.0")])
    assert "--jars" not in words


def test_code_travels_only_to_other_processes() -> None:
    assert "--py-files" not in words_of([("--master", "local[2]")])
    assert value(words_of([("--master", "local-cluster[2,1,1024]")]), "--py-files").endswith(".zip")


def test_a_master_may_come_from_a_properties_file(tmp_path: Path) -> None:
    properties = tmp_path / "my.conf"
    properties.write_text("spark.master   spark://host:7077\n")
    assert "--py-files" in words_of([("--properties-file", str(properties))])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["brokr"], "no verb 'brokr'; did you mean broker?"),
        (["xyz"], "no verb 'xyz'; the verbs are quickstart, broker, "),
        (["topics", "--master", "local[2]"], "topics starts no Spark"),
        (["broker", "--master"], "--master needs a value"),
        (["broker", "--deploy-mode", "cluster"], "use spark-submit itself"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(words) == 2
    error = capsys.readouterr().err
    assert fault in error
    assert error.count("\n") == 1


def test_without_a_verb_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed and verb.help in listed for name, verb in VERBS.items())


def test_the_version_is_that_of_the_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(["--version"]) == 0
    project = Path(__file__).parents[3] / "pyproject.toml"
    assert f'\nversion = "{capsys.readouterr().out.removeprefix("lakelog ").strip()}"\n' in project.read_text()


def test_the_version_of_an_installed_package_is_in_its_metadata(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lakelog.jobs.launch.launcher.SOURCES", tmp_path)
    monkeypatch.setattr("importlib.metadata.version", {"lakelog": "7.8"}.get)
    assert launch(["--version"]) == 0
    assert capsys.readouterr().out == "lakelog 7.8\n"
