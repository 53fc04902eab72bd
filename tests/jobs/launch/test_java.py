"""Java: which one is found, what is said if none will do, and when `spark-submit.sh` installs one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lakelog.jobs.launch import installed
from lakelog.jobs.launch.installed import java_environment
from lakelog.jobs.launch.spark_submit import SOURCES
from lakelog.replication.errors import InvalidConfigurationException

BROKEN = r'printf "Properties init: Could not determine\n\tat java.lang.System\n\ncurrent working directory."; exit 1'
TOOLS = "bash cat cksum dirname env grep readlink sh tail"
MISSING = ["scenario", "missing.yaml"]  # a verb that needs Spark, and refuses its file before it starts any


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def version(number: str) -> str:
    return f"""echo 'openjdk version "{number}" 2025-04-15' >&2"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine in a folder: `bin` is its PATH, `jvm` its /usr/lib/jvm. It has no Java, and no JAVA_HOME."""
    monkeypatch.setattr(installed, "_JAVA_HOMES", tmp_path / "jvm")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def refusal() -> str:
    with pytest.raises(InvalidConfigurationException) as error:
        java_environment()
    return str(error.value)


@pytest.mark.parametrize("number", ["17.0.15", "21", "21.0.1"])
def test_the_java_on_the_path_will_do_if_it_is_supported(machine: Path, number: str) -> None:
    program(machine / "bin/java", version(number))
    assert java_environment() == {}


def test_beside_an_unsupported_java_a_supported_one_is_found(machine: Path) -> None:
    program(machine / "bin/java", version("25"))
    program(machine / "jvm/11/bin/java", version("11.0.2"))
    program(machine / "jvm/21/bin/java", version("21.0.2"))
    assert java_environment() == {"JAVA_HOME": str(machine / "jvm/21")}


@pytest.mark.parametrize(
    ("number", "told"),
    [("1.8.0_402", "there is 8; on"), ("11.0.2", "there is 11; on"), (None, "there is none on the PATH; on")],
)
def test_an_unsupported_java_is_named_if_there_is_no_other(machine: Path, number: str | None, told: str) -> None:
    if number:
        program(machine / "bin/java", version(number))
    assert told in refusal()
    assert "sudo apt-get install openjdk-17-jre-headless" in refusal()


def test_a_java_that_does_not_start_is_refused_with_its_own_message(machine: Path) -> None:
    java = program(machine / "bin/java", BROKEN)
    program(machine / "jvm/21/bin/java", version("21.0.2"))
    told = f"{java} does not start, and says: Properties init: Could not determine current working directory."
    assert refusal() == told, "another one may do as little where the reason lies elsewhere"


@pytest.mark.parametrize(
    ("script", "told"), [(version("11"), "is 11"), (BROKEN, "says: Properties"), (None, "No such file")]
)
def test_a_java_home_of_the_user_is_used_or_refused(
    machine: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, told: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine / "home"))
    program(machine / "bin/java", version("17"))
    if script:
        program(machine / "home/bin/java", script)
    assert told in refusal()
    program(machine / "home/bin/java", version("21"))
    assert java_environment() == {}


def test_a_java_home_in_spark_env_is_kept(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "spark-env.sh").write_text("export JAVA_HOME=/elsewhere\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(machine))
    assert java_environment() == {}


@pytest.fixture
def checkout(machine: Path) -> Callable[..., tuple[int, str, list[str]]]:
    """Runs `spark-submit.sh` as root of that machine: status, output, and the calls of apt-get."""
    home = machine / "checkout"
    home.mkdir()
    for name in ("lakelog", "conf"):
        (home / name).symlink_to(SOURCES / name)
    shutil.copy(SOURCES / "pyproject.toml", home)
    script = (SOURCES / "spark-submit.sh").read_text().replace("/usr/lib/jvm", str(machine / "jvm"))
    program(home / "spark-submit.sh", "").write_text(script)
    program(home / ".venv/bin/python", f'exec "{sys.executable}" "$@"')
    for name in TOOLS.split():
        (machine / "bin" / name).symlink_to(shutil.which(name, path=os.defpath) or f"/usr/bin/{name}")
    program(machine / "bin/id", "echo 0")
    stamp = subprocess.run(["sh", "-c", "cksum <pyproject.toml"], cwd=home, capture_output=True, text=True, check=True)
    (home / ".venv/stamp").write_text(f"{stamp.stdout.strip()} {home}\n")

    def run(*words: str, apt_get: str = "") -> tuple[int, str, list[str]]:
        calls = machine / "calls"
        program(machine / "bin/apt-get", f'echo "$*" >>{calls}; {apt_get}')
        done = subprocess.run(
            [home / "spark-submit.sh", *words], cwd=machine, text=True, timeout=60, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.returncode, done.stdout, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_a_verb_without_spark_installs_nothing(
    machine: Path, checkout: Callable[..., tuple[int, str, list[str]]]
) -> None:
    assert checkout("topics", "--list", "--cluster", "none")[::2] == (1, [])
    program(machine / "bin/java", BROKEN)
    assert checkout("topics", "--list", "--cluster", "none")[::2] == (1, [])


@pytest.mark.parametrize("script", [BROKEN, version("11.0.2")])
def test_a_java_that_is_there_is_never_replaced(
    machine: Path, checkout: Callable[..., tuple[int, str, list[str]]], script: str
) -> None:
    program(machine / "bin/java", script)
    assert checkout(*MISSING)[::2] == (2, [])


def test_a_missing_java_is_announced_and_installed_without_an_upgrade(
    checkout: Callable[..., tuple[int, str, list[str]]],
) -> None:
    status, out, calls = checkout(
        *MISSING, apt_get='echo "apt-get $1"; [ "$2" != -s ] || echo "Inst jre (17.0.21 D [a])"'
    )
    said, *rest, last = out.splitlines()
    assert said == (
        "lakelog: needs Java 17 or 21, and there is none: installing openjdk-17-jre-headless with apt-get, without any "
        "upgrade of what is installed"
    )
    assert rest == ["apt-get update", "apt-get install"]
    assert (status, "missing.yaml: cannot be read" in last) == (2, True), "the verb goes on"
    assert calls[0].split() == ["update", "-qq"]
    assert calls[1].split()[:2] == ["install", "-s"]
    assert calls[2].endswith("--no-upgrade --no-install-recommends openjdk-17-jre-headless")


@pytest.mark.parametrize("line", ["Inst libc6 [2.36-9] (2.36-13 D [amd64])", "Remv jdk [17]"])
def test_what_would_upgrade_or_remove_a_package_is_not_installed(
    checkout: Callable[..., tuple[int, str, list[str]]], line: str
) -> None:
    status, out, calls = checkout(*MISSING, apt_get=f'[ "$2" != -s ] || echo "{line}"')
    assert status == 1
    assert len(calls) == 2
    assert "apt-get would upgrade or remove installed packages" in out
    assert out.splitlines()[-1].endswith("when nothing else runs: sudo apt-get install openjdk-17-jre-headless")
