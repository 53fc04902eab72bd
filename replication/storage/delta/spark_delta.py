"""Delta Lake for Spark: the package, the settings, and the check that a session has both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakelog.replication.errors import InvalidConfigurationException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"

EXTENSIONS, CATALOG = "spark.sql.extensions", "spark.sql.catalog.spark_catalog"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_SPARKS_OWN = "builtin"


def check_delta(spark: SparkSession) -> None:
    """Raises InvalidConfigurationException, in one sentence that names the setting, unless Spark can read Delta tables.

    It asks for classes and settings only, so that it takes milliseconds: no table is read.
    """
    missing = _missing_jar(spark._jvm)
    if DELTA_EXTENSION not in (spark.conf.get(EXTENSIONS, "") or ""):
        missing.append(f"--conf {EXTENSIONS}={DELTA_EXTENSION}")
    if spark.conf.get(CATALOG, "") in ("", _SPARKS_OWN):
        missing.append(f"--conf {CATALOG}={DELTA_CATALOG}")
    _refuse(missing)


def check_delta_jar(jvm: object) -> None:
    """The same for a JVM that has no session yet: Spark would make one without Delta, and log a stack trace."""
    _refuse(_missing_jar(jvm))


def _missing_jar(jvm: Any) -> list[str]:
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(DELTA_EXTENSION)
    except Exception:  # py4j's: there is no such class, or this Spark cannot load it
        return [f"--packages {DELTA_PACKAGE} (or its jar)"]
    return []


def _refuse(missing: list[str]) -> None:
    if missing:
        raise InvalidConfigurationException(
            f"Spark cannot read Delta tables: start it with {' '.join(missing)}, or let lakelog.spark_session() start "
            "it, in a process that has started no Spark yet"
        )
