"""YARN on this machine: a ResourceManager and a NodeManager of Hadoop, in the version of PySpark's client."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from lakelog.jobs.launch.spark_submit import spark_home
from lakelog.verification.server_process import free_ports
from tests.processes import wait_until

_SECONDS = 300  # each run downloads 155 jars
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


@dataclass(frozen=True)
class Yarn:
    """A cluster that runs. `variables` are for the environment of its clients."""

    variables: Mapping[str, str]
    url: str

    def containers(self) -> list[int]:
        """The number of containers of each application that runs."""
        applications = _answer(f"{self.url}/apps?states=RUNNING")
        return [int(number) for number in re.findall(r'"runningContainers":(\d+)', applications)]


@contextmanager
def yarn(folder: Path) -> Iterator[Yarn]:
    """Runs one node with 2 cores and 4 GB on the loopback interface."""
    jars, conf = _jars(folder), folder / "conf"
    names = ("scheduler", "tracker", "client", "admin", "web", "node", "localizer")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    conf.mkdir()
    (conf / "log4j.properties").write_text(_LOG4J)
    _write(conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})
    _write(conf / "yarn-site.xml", _settings(folder, ports))
    url = f"http://127.0.0.1:{ports['web']}/ws/v1/cluster"
    with ExitStack() as stack:
        for kind in ("ResourceManager", "NodeManager"):
            main = f"org.apache.hadoop.yarn.server.{kind.lower()}.{kind}"
            stack.enter_context(_server(folder / f"{kind}.log", conf, jars, main))
        wait_until(lambda: '"RUNNING"' in _answer(f"{url}/nodes?states=RUNNING"), "a node", 60)
        yield Yarn({"HADOOP_CONF_DIR": str(conf)}, url)


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
    done = subprocess.run(words, check=False, env=environment, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    return folder / "ivy" / "jars"


@contextmanager
def _server(log: Path, conf: Path, jars: Path, main: str) -> Iterator[None]:
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    opens = [word for name in ("lang", "util") for word in ("--add-opens", f"java.base/java.{name}=ALL-UNNAMED")]
    command = [java, "-Xmx512m", *opens, "-cp", f"{conf}:{jars}/*", main]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as server:
        try:
            yield
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()


def _answer(address: str) -> str:
    try:
        with urlopen(address, timeout=5) as answer:
            return str(answer.read())
    except (URLError, OSError):
        return ""
