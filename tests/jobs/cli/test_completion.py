"""`lakelog completion`: the scripts know every verb and option, and bash proposes them."""

import importlib
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from lakelog.jobs import completion
from lakelog.jobs.completion import SHELLS
from lakelog.jobs.launch.launcher import VERBS


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    made = {}
    for shell in SHELLS:
        made[shell] = folder / shell
        with pytest.MonkeyPatch.context() as patch, made[shell].open("w") as script:
            patch.setattr("sys.stdout", script)
            assert completion.main([shell]) == 0
    return made


def proposed(script: Path, *words: str) -> list[str]:
    """The words that bash proposes for the last one."""
    line = shlex.join(words)
    program = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _lakelog; echo ${{COMPREPLY[@]}}"
    found = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    return found.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["to"], ["topics"]),
        (["broker"], ["broker", "brokers"]),
        (["--ver"], ["--version"]),
        (["topics", "--replica"], ["--replica-assignment", "--replication-factor"]),
        (["topics", "--create", "--topic", "t", "--if"], ["--if-exists", "--if-not-exists"]),
        (["topics", "-o", ""], ["text", "table", "json"]),
        (["topics", "--output", "t"], ["text", "table"]),
        (["configs", "--entity-type", "b"], ["brokers"]),
        (["bench", "c"], ["controller"]),
        (["bench", "controller", "--br"], ["--brokers"]),
        (["completion", "f"], ["fish"]),
        (["topics", "--command-config", "server"], []),  # bash proposes files
        (["nothing", "--"], []),
    ],
)
def test_bash_proposes_verbs_options_and_values(scripts: dict[str, Path], words: list[str], found: list[str]) -> None:
    assert proposed(scripts["bash"], "lakelog", *words) == found


def test_bash_proposes_every_verb_and_every_option(scripts: dict[str, Path]) -> None:
    assert set(VERBS) <= set(proposed(scripts["bash"], "lakelog", ""))
    for name, verb in VERBS.items():
        known = importlib.import_module(verb.module).make_parser()._option_string_actions
        assert set(known) <= set(proposed(scripts["bash"], "lakelog", name, "-")), name


def test_zsh_and_fish_know_every_verb_and_option(scripts: dict[str, Path]) -> None:
    zsh, fish = scripts["zsh"].read_text(), scripts["fish"].read_text()
    for name, verb in VERBS.items():
        (specs,) = [line for line in zsh.splitlines() if line.startswith(f"        {name}) _arguments ")]
        told = verb.help.replace("'", "")
        assert f"'{name}:{told}'" in zsh
        assert f"-a {name} -d '{told}'" in fish
        seen = [line for line in fish.splitlines() if f"'__fish_seen_subcommand_from {name}'" in line]
        for option in importlib.import_module(verb.module).make_parser()._option_string_actions:
            assert f"'{option}[" in specs
            word = f" -l {option[2:]} " if option.startswith("--") else f" -s {option[1:]} "
            assert any(word in line for line in seen), (name, option)


def test_scripts_are_right_as_far_as_their_shells_are_here(scripts: dict[str, Path]) -> None:
    for shell, script in scripts.items():
        if shutil.which(shell):
            subprocess.run([shell, "-n", script], check=True)
        for line in script.read_text().splitlines():
            assert shell == "bash" or line.count("'") % 2 == 0, line
