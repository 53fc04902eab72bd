"""Delta's jars, fetched once into a folder, so that no start has to ask a registry.

`python -m lakelog.jobs.launch.delta_jars FOLDER` lets Spark resolve them, from wherever this
machine's Spark resolves packages.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lakelog.jobs.launch.installed import java_environment
from lakelog.jobs.launch.spark_submit import spark_home
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.storage.delta.spark_delta import DELTA_PACKAGE

# Of the 33 jars that Maven's metadata ask for, Spark's own distribution holds all others, mostly in newer versions.
GROUPS = ("io.delta_", "io.unitycatalog_")


def fetch(folder: Path) -> None:
    """Fill `folder`; a failure shows what Spark's resolver said, success shows nothing of it."""
    with tempfile.TemporaryDirectory() as scratch:
        jars = resolve(DELTA_PACKAGE, Path(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        for jar in jars:
            if jar.name.startswith(GROUPS):
                shutil.copy(jar, folder)


def resolve(packages: str, ivy: Path) -> list[Path]:
    """The jars of packages, separated by commas, and all that they need, in a folder below `ivy`. Spark resolves
    packages before it runs the program, so an empty program will do."""
    ivy.mkdir(exist_ok=True)
    program = ivy / "nothing.py"
    program.touch()
    command = [str(spark_home() / "bin" / "spark-submit"), "--packages", packages]
    subprocess.run(
        [*command, "--conf", f"spark.jars.ivy={ivy}", str(program)], check=True, stdin=subprocess.DEVNULL,
        env={**os.environ, **java_environment()},
    )  # fmt: skip
    return sorted(Path(ivy, "jars").glob("*.jar"))


if __name__ == "__main__":
    try:
        fetch(Path(sys.argv[1]))
    except InvalidConfigurationException as error:
        sys.exit(str(error))
