"""Lakelog: Kafka's replication protocol on Delta Lake, run by Spark.

The names below are the public face. Each is imported at its first use: `import lakelog` alone starts nothing and needs
no Spark, and neither do Producer, Consumer and AdminClient.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakelog.jobs.launch.session import spark_session as spark_session
    from lakelog.replication.clients.admin import AdminClient as AdminClient
    from lakelog.replication.clients.aio import AIOConsumer as AIOConsumer
    from lakelog.replication.clients.aio import AIOProducer as AIOProducer
    from lakelog.replication.clients.consumer import Consumer as Consumer
    from lakelog.replication.clients.producer import Producer as Producer
    from lakelog.replication.clients.producer import raise_first_error as raise_first_error
    from lakelog.replication.clients.reader import read_committed as read_committed
    from lakelog.replication.clients.reader import read_latest as read_latest
    from lakelog.replication.clients.source.offsets_behind import offsets_behind_latest as offsets_behind_latest
    from lakelog.replication.clients.views import register_views as register_views
    from lakelog.replication.config import Config as Config
    from lakelog.replication.errors import LakelogException as LakelogException
    from lakelog.replication.local_cluster import LocalCluster as LocalCluster

    __version__: str

_MODULES = {
    "AIOConsumer": "lakelog.replication.clients.aio",
    "AIOProducer": "lakelog.replication.clients.aio",
    "AdminClient": "lakelog.replication.clients.admin",
    "Config": "lakelog.replication.config",
    "Consumer": "lakelog.replication.clients.consumer",
    "LakelogException": "lakelog.replication.errors",
    "LocalCluster": "lakelog.replication.local_cluster",
    "Producer": "lakelog.replication.clients.producer",
    "offsets_behind_latest": "lakelog.replication.clients.source.offsets_behind",
    "raise_first_error": "lakelog.replication.clients.producer",
    "read_committed": "lakelog.replication.clients.reader",
    "read_latest": "lakelog.replication.clients.reader",
    "register_views": "lakelog.replication.clients.views",
    "spark_session": "lakelog.jobs.launch.session",
}

__all__ = [
    "AIOConsumer",
    "AIOProducer",
    "AdminClient",
    "Config",
    "Consumer",
    "LakelogException",
    "LocalCluster",
    "Producer",
    "__version__",
    "offsets_behind_latest",
    "raise_first_error",
    "read_committed",
    "read_latest",
    "register_views",
    "spark_session",
]


def __getattr__(name: str) -> object:
    """A public name, imported now. Raises ModuleNotFoundError, saying what to install, if it needs Spark and there is
    none."""
    if name == "__version__":
        return import_module("lakelog.jobs.launch.installed").version()
    if name not in _MODULES:
        raise AttributeError(f"module 'lakelog' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        value = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise ModuleNotFoundError(f"{name} needs Spark: pip install 'lakelog[spark]'", name="pyspark") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "jobs", "replication", "schemas"]
