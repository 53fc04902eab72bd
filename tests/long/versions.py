"""This version of Lakelog, and another one, for tests in which both run one cluster.

The other version is the commit before this one, or the one that LAKELOG_OTHER_COMMIT names. It runs in this
environment. If it needs other packages, LAKELOG_OTHER_CHECKOUT names a checkout that has an environment of its own.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.pages import HOUSE

PATIENCE = 120.0  # s


class Version:
    """The commands of one version. `python` is the command that runs its Python, `program` the one before a verb."""

    def __init__(self, name: str, checkout: Path, python: str) -> None:
        self.name = name
        # Not the code of the current folder, nor of this test's own version.
        self.python = ("env", "PYTHONSAFEPATH=1", f"PYTHONPATH={checkout}", python)
        self.program = (*self.python, "-m", "lakelog.jobs")

    def run(self, *words: str, given: str = "") -> str:
        """The output of a verb that succeeds."""
        done = subprocess.run(
            [*self.program, *words], input=given, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, f"{self.name}: {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def install(self, environment: Path) -> None:
        """Makes a folder that has the command of this version where an environment has it."""
        command = environment / "bin" / "lakelog"
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec {shlex.join(self.program)} "$@"\n')
        command.chmod(0o755)


def this_version() -> Version:
    """The version of this checkout."""
    return Version("this", HOUSE, sys.executable)


def other_version(folder: Path) -> Version:
    """The other version. Unless it has a checkout, it gets one in `folder`."""
    if checkout := os.environ.get("LAKELOG_OTHER_CHECKOUT"):
        return Version("other", Path(checkout), str(Path(checkout) / ".venv" / "bin" / "python"))
    clone, commit = folder / "other", os.environ.get("LAKELOG_OTHER_COMMIT", "HEAD^")
    subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", str(HOUSE), str(clone)], check=True)
    name = subprocess.run(["git", "rev-parse", commit], cwd=HOUSE, check=True, capture_output=True, text=True).stdout
    subprocess.run(["git", "checkout", "-q", name.strip()], cwd=clone, check=True)
    return Version("other", clone, sys.executable)
