"""The help of every verb: plain sentences, every option explained, examples that parse."""

import argparse
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from lakelog.jobs.cli.verb_parser import EXAMPLES, VerbParser
from lakelog.jobs.launch.launcher import VERBS, launch
from lakelog.jobs.launch.spark_submit import OPTIONS

FILES = {
    "topics.json": {"topics": [{"topic": "t"}]},
    "moves.json": {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]},
    "offsets.json": {"partitions": [{"topic": "t", "partition": 0, "offset": 10}]},
}
COMMANDS = [command for examples in EXAMPLES.values() for _, command in examples]


def parser_of(verb: str) -> VerbParser:
    return importlib.import_module(VERBS[verb].module).make_parser()


def parsers_of(verb: str) -> list[argparse.ArgumentParser]:
    """The verb's, and those of its commands."""
    found = parser_of(verb)
    groups = [action for action in found._actions if isinstance(action, argparse._SubParsersAction)]
    return [found, *(parser for group in groups for parser in group.choices.values())]


@pytest.mark.parametrize("columns", ["60", "80", "300"])
@pytest.mark.parametrize("verb", VERBS)
def test_help_is_narrow_has_examples_and_no_internal_ids(
    verb: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = "\n".join(parser.format_help() for parser in parsers_of(verb))
    assert max(map(len, text.splitlines())) <= 100
    assert "\nexamples:\n\n  # " in text
    assert f"\n  lakelog {verb}" in text or f'"$(lakelog {verb}' in text
    assert not re.search(r"[A-Z]{2}-\d\d|KIP-\d", text)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_explained(verb: str) -> None:
    for parser in parsers_of(verb):
        for action in parser._actions:
            assert action.help, action.option_strings


@pytest.mark.parametrize("verb", VERBS)
def test_no_option_is_one_of_spark_submit(verb: str) -> None:
    """Those may stand anywhere, and go to Spark."""
    for parser in parsers_of(verb):
        assert not OPTIONS & parser._option_string_actions.keys()


def test_all_verbs_name_the_cluster_the_properties_file_and_the_form_alike() -> None:
    """The properties file, the cluster, and the form of the answer."""
    for verb in VERBS:
        for parser in parsers_of(verb):
            for action in parser._actions:
                names = action.option_strings
                assert ("properties file" in str(action.help)) == (names == ["--command-config"]), (verb, names)
                assert ("root of the cluster" in str(action.help)) == (names == ["--cluster"]), (verb, names)
                assert (action.dest == "output") == (names == ["-o", "--output"]), (verb, names)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_is_understood(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "server.properties").touch()
    (tmp_path / "console.token").touch(0o600)
    (tmp_path / "console.token").write_text("0123456789abcdef" * 4)
    words = shlex.split(command.replace('eval "$(', "").replace(')"', "").replace("\\\n", "").split(" > ")[0])
    assert words[0] == "lakelog"
    parser_of(words[1]).parse_args(words[2:])


@pytest.mark.parametrize("verb", VERBS)
def test_help_needs_no_spark(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One that did would take this process over."""
    assert launch([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: lakelog {verb}")
