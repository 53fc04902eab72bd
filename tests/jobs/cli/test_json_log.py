"""--log-format json: each line is one object, whatever is logged, printed or raised."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakelog.jobs.cli.json_log import jvm_with_json
from tests.processes import wait_until

CONF = Path(__file__).resolve().parents[3] / "conf"

PROGRAM = """
import logging, sys, threading, warnings
from lakelog.jobs.cli.console import log_to_stderr, say
from lakelog.replication.errors import KafkaStorageException
log_to_stderr("broker 7", "INFO", "json")
logger = logging.getLogger("lakelog.replication.trial")
"""


def logged(program: str, status: int = 0) -> list[dict[str, Any]]:
    """The lines of a process that runs this, after it has begun to log."""
    done = subprocess.run([sys.executable, "-c", PROGRAM + program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (status, b""), done.stderr
    assert done.stderr.isascii()
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize(
    ("call", "fields"),
    [
        pytest.param('logger.info("is %s", "here")', {"level": "INFO", "message": "is here"}, id="a message"),
        pytest.param('logger.debug("no")\nlogger.info("yes")', {"message": "yes"}, id="--log-level holds"),
        pytest.param(
            'logger.warning("a\\nb\\r\\u2028\\x00\\x1b[31m\\"\\\\é😀")', {"message": 'a\nb\r\u2028\x00\x1b[31m"\\é😀'},
            id="odd characters",
        ),
        pytest.param('logger.info("\\udcff")', {"message": "\udcff"}, id="a byte that is not UTF-8"),
        pytest.param('logger.info("%d is %s", 1)', {"message": "%d is %s (1,)"}, id="values that do not go together"),
        pytest.param('logger.info("%s", {"a": 1})', {"message": "{'a': 1}"}, id="one value that is a mapping"),
        pytest.param(
            'logger.warning("broker 7: %s", KafkaStorageException("away"))',
            {"message": "broker 7: away", "error": "KafkaStorageException"}, id="an error among the values",
        ),
        pytest.param(
            'logger.info("new", extra={"epoch": 3, "partition": "t-0", "partitions": ["t-1"], "error": "E"})',
            {"epoch": 3, "partition": "t-0", "partitions": ["t-1"], "error": "E"}, id="fields of a call",
        ),
        pytest.param('logger.info("new", extra={"partition": object})', {"partition": "<class 'object'>"}, id="a type"),
        pytest.param('say("lakelog: words")', {"level": "INFO", "logger": "lakelog", "message": "words"}, id="words"),
        pytest.param(
            'print("printed", file=sys.stderr)', {"level": "WARNING", "logger": "stderr", "message": "printed"},
            id="what a library prints",
        ),
        pytest.param('print("one", "line\\n\\n", file=sys.stderr)', {"message": "one line"}, id="empty lines"),
        pytest.param('warnings.warn("old")', {"level": "WARNING", "logger": "py.warnings"}, id="a warning of Python"),
    ],
)  # fmt: skip
def test_each_line_is_an_object_with_its_fields(call: str, fields: dict[str, object]) -> None:
    (line,) = logged(call)
    assert fields.items() <= line.items()
    assert {"process": "broker", "broker": "7"}.items() <= line.items()
    assert {"ts", "level", "logger", "message"} <= line.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
    assert "exception" not in line


def test_an_exception_is_one_field() -> None:
    (line,) = logged(
        'try:\n    raise KafkaStorageException("a\\nb")\nexcept Exception:\n    logger.exception("round: unexpected")'
    )
    assert line["message"] == "round: unexpected"
    assert line["error"] == "KafkaStorageException"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("KafkaStorageException: a\nb")


@pytest.mark.parametrize(
    ("program", "status", "message"),
    [
        ('raise ValueError("bad")', 1, "unexpected error"),
        ('def f():\n    raise ValueError("bad")\nt = threading.Thread(target=f, name="T")\nt.start()\nt.join()', 0,
         "unexpected error in thread T"),
        ('class A:\n    def __del__(self):\n        raise ValueError("bad")\na = A()\ndel a', 0,
         "unexpected error in <"),
    ],
    ids=["of the process", "of a thread", "without a caller"],
)  # fmt: skip
def test_an_error_that_nobody_catches_is_one_line(program: str, status: int, message: str) -> None:
    (line,) = logged(program, status)
    assert line["message"].startswith(message)
    assert line["error"] == "ValueError"
    assert "ValueError: bad" in line["exception"]


def test_a_verb_that_is_refused_says_so_in_a_line() -> None:
    words = ["controller", "--cluster", "/nowhere/cluster", "--log-format", "json"]
    done = subprocess.run([sys.executable, "-m", "lakelog.jobs", *words], capture_output=True, check=False, timeout=60)
    (line,) = [json.loads(text) for text in done.stderr.splitlines()]
    assert done.returncode == 1
    assert line["level"] == "ERROR"
    assert line["error"] in ("InconsistentClusterIdException", "KafkaStorageException")
    assert "/nowhere/cluster" in line["message"]


def test_lines_of_a_jvm_pass_as_they_are_and_its_other_words_become_objects(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(CONF))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    printed = [b'{"ts": "now"}\n', b"WARNING: \xff\n", b'{"part\n', b"[1]\n", b"no end"]
    with jvm_with_json("7"):
        options = os.environ["SPARK_SUBMIT_OPTS"]
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=2)
    child.communicate(b"".join(printed), timeout=60)
    lines: list[str] = []

    def all_are_there() -> bool:
        lines.extend(capfd.readouterr().err.splitlines())
        return len(lines) >= len(printed)

    wait_until(all_are_there, "the lines have passed")
    found = [json.loads(line) for line in lines]
    assert found[0] == {"ts": "now"}
    assert [line["message"] for line in found[1:]] == ["WARNING: \ufffd", '{"part', "[1]", "no end"]
    assert {(line["process"], line["broker"], line["logger"]) for line in found[1:]} == {("jvm", "7", "stderr")}
    assert options == f"-Dlog4j2.configurationFile={(CONF / 'log4j2-json.properties').as_uri()} -Dlakelog.broker=7"


@pytest.mark.parametrize(
    ("given", "conf"), [("-Dlog4j2.configurationFile=own.xml", str(CONF)), ("-Xss1m", "/nowhere"), ("-Xss1m", None)]
)
def test_settings_of_log4j_that_a_user_has_chosen_stay(
    given: str, conf: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", given)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    if conf is not None:
        monkeypatch.setenv("SPARK_CONF_DIR", conf)
    with jvm_with_json("7"):
        assert os.environ["SPARK_SUBMIT_OPTS"] == given


def test_the_json_settings_of_log4j_hide_and_show_what_the_others_do() -> None:
    text, js = (
        {line for line in (CONF / name).read_text("utf-8").splitlines() if line.startswith(("appender", "root", "|"))}
        for name in ("log4j2.properties", "log4j2-json.properties")
    )
    assert {line.split(" = ")[0] for line in text - js} == {
        "appender.stderr.layout.type",
        "appender.stderr.layout.pattern",
    }
    assert {line.split(" = ")[0] for line in js - text} == {
        "appender.stderr.layout.type",
        "appender.stderr.layout.eventTemplate",
    }
