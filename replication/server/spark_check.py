"""Checks that a Spark session can run a broker: once, at the start, before anything is written.

Without the check a broker would register and lead, while its own fetchers fail again and again.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from shutil import which
from sys import executable
from weakref import WeakSet

from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.storage.delta.spark_delta import check_delta
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.header_source import read_headers
from lakelog.replication.storage.log.header_stream import HeaderStream

_NOWHERE = "/nowhere"  # planning a stream opens no root
_ERROR_LINE = re.compile(r"^[:\s]*(?:\w+\.)*(\w+(?:Error|Exception): .+)$", re.MULTILINE)
_TOO_SLOW = "Python worker failed to connect back"

_checked: WeakSet[SparkContext] = WeakSet()
_checking = threading.Lock()


def check_spark(spark: SparkSession) -> None:
    """Checks that the session can read Delta tables and that its Python workers can import Lakelog, once for each Spark
    application. Raises InvalidConfigurationException with one sentence that says what to set."""
    with _checking:
        context = spark.sparkContext
        if context not in _checked:
            check_delta(spark)
            _check_workers(spark)
            _checked.add(context)


def _check_workers(spark: SparkSession) -> None:
    """Makes a worker load the source of the followers' streams. Spark plans the source without a task, so a worker that
    fails leaves no stack trace in the log. On a busy machine a worker may need more than the 10 s that Spark waits, so
    it gets three tries."""
    for last in (False, False, True):
        try:
            read_headers(spark.newSession(), HeaderStream(StorageRoot.of(_NOWHERE), 0))
        except Exception as error:  # Spark's and py4j's: the worker failed, or could not be started
            if last or _TOO_SLOW not in str(error):
                raise InvalidConfigurationException(_refusal(spark.sparkContext.pythonExec, str(error))) from None
        else:
            return


def _refusal(python: str, error: str) -> str:
    found = _ERROR_LINE.search(error)
    reason = found[1] if found else error.strip().partition("\n")[0]
    return (
        f"Spark's Python workers ({python}) cannot run Lakelog: {reason.rstrip('.')}; set {_setting(python)} before "
        "Spark starts, or let lakelog.spark_session() start it"
    )


def _setting(python: str) -> str:
    """The setting to change: the interpreter if it is not the driver's, else the path to the package."""
    found, own = Path(which(python) or python), Path(executable)
    if found.parent == own.parent and found.resolve() == own.resolve():
        return f"PYTHONPATH={Path(__file__).parents[3]}"
    return f"PYSPARK_PYTHON={own}"
