"""YARN on this machine: a ResourceManager and a NodeManager of Hadoop, in the version of PySpark's client."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from lakelog.jobs.launch.spark_submit import spark_home
from tests.processes import wait_until

_SECONDS = 300  # the first use downloads 155 jars
_SERVERS = (
    "hadoop-common", "hadoop-yarn-server-nodemanager", "hadoop-yarn-server-resourcemanager",
    "hadoop-yarn-server-timelineservice",
)  # fmt: skip
_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"  # it needs no queues
_LOG4J = """log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


@contextmanager
def yarn(folder: Path) -> Iterator[dict[str, str]]:
    """Runs one node with 2 cores and 4 GB on the loopback interface. Yields the variables of its clients."""
    jars, conf = _jars(folder), folder / "conf"
    ports = _free_ports("scheduler", "tracker", "client", "admin", "web", "node", "localizer")
    conf.mkdir()
    (conf / "log4j.properties").write_text(_LOG4J)
    _write(conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})
    _write(conf / "yarn-site.xml", _settings(folder, ports))
    servers = [
        _start(folder / f"{kind}.log", conf, jars, f"org.apache.hadoop.yarn.server.{kind.lower()}.{kind}")
        for kind in ("ResourceManager", "NodeManager")
    ]
    try:
        nodes = f"http://127.0.0.1:{ports['web']}/ws/v1/cluster/nodes?states=RUNNING"
        wait_until(lambda: '"RUNNING"' in _answer(nodes), "a node", 60)
        yield {"HADOOP_CONF_DIR": str(conf)}
    finally:
        for server in reversed(servers):
            server.terminate()
        for server in servers:
            server.wait(_SECONDS)


def _settings(folder: Path, ports: Mapping[str, int]) -> dict[str, object]:
    names = {
        "resourcemanager.scheduler.address": "scheduler",
        "resourcemanager.resource-tracker.address": "tracker",
        "resourcemanager.address": "client",
        "resourcemanager.admin.address": "admin",
        "resourcemanager.webapp.address": "web",
        "nodemanager.address": "node",
        "nodemanager.localizer.address": "localizer",
    }
    return {f"yarn.{name}": f"127.0.0.1:{ports[port]}" for name, port in names.items()} | {
        "yarn.resourcemanager.scheduler.class": _SCHEDULER,
        "yarn.nodemanager.webapp.address": "127.0.0.1:0",
        "yarn.nodemanager.local-dirs": folder / "local",
        "yarn.nodemanager.log-dirs": folder / "containers",
        "yarn.nodemanager.resource.memory-mb": 4096,
        "yarn.nodemanager.resource.cpu-vcores": 2,
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
        "yarn.scheduler.minimum-allocation-mb": 256,
    }


def _write(file: Path, settings: Mapping[str, object]) -> None:
    rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>\n" for k, v in settings.items())
    file.write_text(f"<configuration>\n{rows}</configuration>\n")


def _jars(folder: Path) -> Path:
    """The servers with all that they need. Spark resolves packages before it runs the program, which is empty."""
    (version,) = re.findall(r"hadoop-client-api-(.+)\.jar", "\n".join(os.listdir(spark_home() / "jars")))
    packages = ",".join(f"org.apache.hadoop:{server}:{version}" for server in _SERVERS)
    program = folder / "nothing.py"
    program.touch()
    submit = str(spark_home() / "bin" / "spark-submit")
    words = [submit, "--packages", packages, "--conf", f"spark.jars.ivy={folder}/ivy", str(program)]
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    subprocess.run(words, check=True, env=environment, capture_output=True, timeout=_SECONDS)
    return folder / "ivy" / "jars"


def _start(log: Path, conf: Path, jars: Path, main: str) -> subprocess.Popen[bytes]:
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    opens = [word for name in ("lang", "util") for word in ("--add-opens", f"java.base/java.{name}=ALL-UNNAMED")]
    with log.open("wb") as file:
        return subprocess.Popen([java, "-Xmx512m", *opens, "-cp", f"{conf}:{jars}/*", main], stdout=file, stderr=file)


def _free_ports(*names: str) -> dict[str, int]:
    """Held together until all are found, so that no two are the same."""
    with ExitStack() as held:
        found = {name: held.enter_context(socket.socket()) for name in names}
        for port in found.values():
            port.bind(("127.0.0.1", 0))
        return {name: int(port.getsockname()[1]) for name, port in found.items()}


def _answer(address: str) -> str:
    try:
        with urlopen(address, timeout=5) as answer:
            return str(answer.read())
    except (URLError, OSError):
        return ""
