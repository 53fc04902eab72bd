"""The installed package, in a folder where the user has packages `jobs`, `schemas` and `replication` too."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lakelog

HOUSE = Path(__file__).resolve().parent.parent
FOLDERS = ("jobs", "replication", "schemas")
SHIPPED = ("lakelog", "pyspark_lakelog", *FOLDERS, "conf", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes beside what it builds from."""
    copy, built = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    for name in SHIPPED:
        if (HOUSE / name).is_dir():
            shutil.copytree(HOUSE / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(HOUSE / name, copy)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(built), str(copy))
    (found,) = built.glob("lakelog-*.whl")
    return found


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", *words, "--no-deps", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the wheel in it."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-compile", "--target", str(target), str(wheel))
    return target


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """Importing one of its packages is an error: none of them is ours."""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('this is the package of the user')\n")
    return tmp_path


def verb(installed: Path, folder: Path, *words: str) -> str:
    return output(installed, folder, sys.executable, "-m", "lakelog.jobs", *words)


def run_verb(installed: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return run(installed, folder, sys.executable, "-m", "lakelog.jobs", *words)


def output(installed: Path, folder: Path, *command: str) -> str:
    done = run(installed, folder, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(installed: Path, folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        command, env={**environment, "PYTHONPATH": str(installed)}, cwd=folder, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_the_wheel_has_every_module_below_one_name(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name and ".data/" not in name}
    sources = {f"lakelog/{p.relative_to(HOUSE)}" for folder in FOLDERS for p in (HOUSE / folder).rglob("*.py")}
    pages = HOUSE / "jobs" / "web"
    sources |= {f"lakelog/{p.relative_to(HOUSE)}" for part in ("templates", "static") for p in (pages / part).iterdir()}
    assert names == sources | {"lakelog/__init__.py", "lakelog/py.typed", "pyspark_lakelog/__init__.py"}


def test_the_public_names_are_imported_from_the_wheel(installed: Path, users_folder: Path) -> None:
    names = ", ".join(lakelog.__all__)
    program = f"import lakelog; from lakelog import {names}; print(lakelog.__file__, __version__)"
    expected = f"{installed / 'lakelog' / '__init__.py'} {lakelog.__version__}"
    assert output(installed, users_folder, sys.executable, "-c", program).strip() == expected


@pytest.mark.parametrize("name", ["topics", "broker", "quickstart"])
def test_verbs_of_the_wheel_explain_themselves(installed: Path, users_folder: Path, name: str) -> None:
    assert f"usage: lakelog {name}" in verb(installed, users_folder, name, "--help")


def test_the_wheel_makes_a_cluster(installed: Path, users_folder: Path) -> None:
    uri = str(users_folder / "cluster")
    verb(installed, users_folder, "format", "--cluster", uri)
    assert (
        f"No broker has registered at {uri}." in run_verb(installed, users_folder, "brokers", "--cluster", uri).stderr
    )


@pytest.mark.parametrize("words", [["soak"], ["scenario", "failover.yaml"], ["quickstart", "--store", "s3"]])
def test_verbs_that_verify_lakelog_say_that_they_need_a_checkout(
    installed: Path, users_folder: Path, words: list[str]
) -> None:
    done = run_verb(installed, users_folder, *words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()[-1:]
    assert "needs a checkout of Lakelog and its ./spark-submit.sh; the installed package has none" in line


def test_the_wheel_lists_and_completes_only_its_own_verbs(installed: Path, users_folder: Path) -> None:
    assert not {"soak", "simulate"} & set(verb(installed, users_folder, "--help").split())
    assert "simulate" not in verb(installed, users_folder, "completion", "bash")


def test_the_command_of_the_wheel_works(installed: Path, users_folder: Path) -> None:
    assert "Usage: lakelog VERB" in output(installed, users_folder, str(installed / "bin" / "lakelog"), "--help")
