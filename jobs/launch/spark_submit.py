"""The arguments of spark-submit: the user's own, and ours for what the user left open.

A verb's Python process is the parent and starts its JVM through spark-submit (PYSPARK_SUBMIT_ARGS), so that the process
that a person or a supervisor has started is the one that gets SIGTERM and can shut down in order.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import site
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lakelog.replication.storage.delta.spark_delta import DELTA_PACKAGE

# Names that belong to spark-submit, before or after the verb: no verb may have an option of such a name.
OPTIONS = frozenset(
    """
    --archives --conf --deploy-mode --driver-class-path --driver-cores --driver-java-options --driver-library-path
    --driver-memory --exclude-packages --executor-cores --executor-memory --files --jars --keytab --master --name
    --num-executors --packages --principal --properties-file --proxy-user --py-files --queue --repositories
    --total-executor-cores
    """.split()
)

# The same said by --conf, which spark-submit would drop beside the option.
CONFS = {
    "spark.jars": "--jars",
    "spark.jars.packages": "--packages",
    "spark.master": "--master",
    "spark.submit.deployMode": "--deploy-mode",
    "spark.submit.pyFiles": "--py-files",
}

# Spark puts these before the options that a user gives the driver's JVM, which win therefore.
_JAVA_DEFAULTS = "spark.driver.defaultJavaOptions"

# The JVM reads these before its command line, whose options would win over them.
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")

# The JVM starts Python workers by a helper program of the JDK, which refuses a JVM of another version: after an upgrade
# of the JDK, a JVM that was running before could start nothing any more. With this it needs no helper.
_WITHOUT_HELPER = "-Djdk.lang.Process.launchMechanism=VFORK"

Options = list[tuple[str, str]]

_SHELL = "pyspark-shell"  # the last word of PYSPARK_SUBMIT_ARGS: the driver is not started by spark-submit

PACKAGE = Path(__file__).parents[2].resolve()  # not of the file itself: in a checkout its folder is a link
SOURCES = PACKAGE.parent  # of a checkout its folder, which has `conf` too
_DATA_SOURCE = SOURCES / "pyspark_lakelog"  # what Spark finds `format("lakelog")` in


def split_arguments(words: list[str]) -> tuple[Options, list[str]]:
    """Options of spark-submit, and the rest; after `--` everything is the rest."""
    options: Options = []
    rest: list[str] = []
    queue = iter(words)
    for word in queue:
        name, equals, value = word.partition("=")
        if word == "--":
            rest.extend(queue)
        elif name in OPTIONS:
            options.append(_option(name, value if equals else _value(name, queue)))
        else:
            rest.append(word)
    return options, rest


def with_java_options(options: Options, wanted: str) -> Options:
    """`options`, with `wanted` as the default options of the driver's JVM, unless the user has set defaults of their
    own or chosen a compiler in the environment."""
    is_set = any(name == "--conf" and value.partition("=")[0] == _JAVA_DEFAULTS for name, value in options)
    is_set |= re.search(rf"^\s*{re.escape(_JAVA_DEFAULTS)}[\s=:]", _properties(options), re.MULTILINE) is not None
    is_chosen = any("Tiered" in os.environ.get(name, "") for name in _JAVA_VARIABLES)
    return [*options, ("--conf", f"{_JAVA_DEFAULTS}={wanted}")] if wanted and not (is_set or is_chosen) else options


def session_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The same variables for a program that makes a session by itself: `settings`, over PYSPARK_SUBMIT_ARGS."""
    given = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    options, rest = split_arguments([*given, *(f"--conf={name}={value}" for name, value in settings.items())])
    return spark_environment(options, [word for word in rest if word != _SHELL])


def spark_environment(options: Options, flags: Sequence[str] = ()) -> dict[str, str]:
    """The variables that a PySpark driver needs to start its JVM as `options`, `flags` such as --verbose, and our
    defaults say."""
    if ("--deploy-mode", "cluster") in options:
        raise ValueError("--deploy-mode cluster starts the driver elsewhere: use spark-submit itself for it")
    master = _master(options)
    variables = {
        # Spark's own search for it breaks on a path with spaces.
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*_submit_words(options, master), *flags, _SHELL]),
        "SPARK_SUBMIT_OPTS": _submit_opts(),
    }
    if conf := _conf_folder():
        variables["SPARK_CONF_DIR"] = str(conf)
    if master.startswith("local"):
        variables["PYSPARK_PYTHON"] = sys.executable
        variables["PYTHONPATH"] = os.pathsep.join(_worker_path())
    if shlex.quote(sys.executable) != sys.executable and "PYSPARK_DRIVER_PYTHON" not in os.environ:
        # Spark asks a shell for the driver's Python, without quotes, and finds no data source in Python without it.
        folder, variables["PYSPARK_DRIVER_PYTHON"] = os.path.split(sys.executable)
        variables["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
    if re.match(r"local|spark://(localhost|127\.)", master):
        # A laptop's host name may resolve to an address that it had in another network.
        variables["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    return variables


def spark_home() -> Path:
    """The Spark that PySpark will start: SPARK_HOME, or what came with PySpark."""
    if given := os.environ.get("SPARK_HOME"):
        return Path(given)
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ValueError("PySpark is not installed: pip install 'lakelog[spark]'")
    return Path(found.origin).parent


def _value(name: str, queue: Iterator[str]) -> str:
    value = next(queue, None)
    if value is None:
        raise ValueError(f"{name} needs a value")
    return value


def _option(name: str, value: str) -> tuple[str, str]:
    key, _, setting = value.partition("=")
    return (CONFS[key], setting) if name == "--conf" and key in CONFS else (name, value)


def _values(options: Options, name: str) -> list[str]:
    return [value for key, value in options if key == name]


def _submit_words(options: Options, master: str) -> list[str]:
    """Lists that we add to are given once: of two, spark-submit takes only the last."""
    delta = _delta(options)
    archives = [] if re.fullmatch(r"local(\[.*\])?", master) else [str(code_archive())]
    lists = {
        "--jars": [*_values(options, "--jars"), *delta.get("--jars", [])],
        "--packages": [*_values(options, "--packages"), *delta.get("--packages", [])],
        "--py-files": [*_values(options, "--py-files"), *archives],
    }
    words = [word for name, value in options if name not in lists for word in (name, value)]
    return words + [word for name, values in lists.items() if values for word in (name, _joined(values))]


def _submit_opts() -> str:
    """The options of the driver's JVM that are in the environment, after ours: of two, the JVM takes the last."""
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    return given if _WITHOUT_HELPER in given else f"{_WITHOUT_HELPER} {given}".strip()


def _joined(lists: Iterable[str]) -> str:
    """Lists as one, each item once: a verb's process gets its launcher's arguments again."""
    return ",".join(dict.fromkeys(",".join(lists).split(",")))


def is_delta_there(options: Options) -> bool:
    """Whether the user or Spark brings Delta."""
    brought = any("delta-spark" in value for name in ("--jars", "--packages") for value in _values(options, name))
    return brought or any((spark_home() / "jars").glob("delta-spark*.jar"))


def _delta(options: Options) -> dict[str, list[str]]:
    """Delta from this environment's folder, else from a registry, and from neither if it is there."""
    if is_delta_there(options):
        return {}
    jars = sorted(str(jar) for jar in Path(sys.prefix, "jars").glob("*.jar"))
    return {"--jars": jars} if jars else {"--packages": [DELTA_PACKAGE]}


def _conf_folder() -> Path | None:
    """Our settings, as Spark's own configuration folder, unless this Spark has been given one."""
    if "SPARK_CONF_DIR" in os.environ or (spark_home() / "conf" / "spark-defaults.conf").exists():
        return None
    folders = (SOURCES / "conf", Path(sys.prefix, "share", "lakelog", "conf"))
    return next((folder for folder in folders if (folder / "spark-defaults.conf").exists()), None)


def _worker_path() -> list[str]:
    """PYTHONPATH for local workers, which know nothing of the driver's `sys.path`. They find installed packages."""
    given = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    found = {*given, *site.getsitepackages(), site.getusersitepackages()}
    return given if str(SOURCES) in found else [*given, str(SOURCES)]


def _master(options: Options) -> str:
    """The master that spark-submit will arrive at."""
    found = re.search(r"^\s*spark\.master[\s=:]+(\S+)", _properties(options), re.MULTILINE)
    return [found[1] if found else "local[*]", *_values(options, "--master")][-1]


def _properties(options: Options) -> str:
    """The text of the properties file that spark-submit will read. Raises ValueError if that is not there."""
    given = _values(options, "--properties-file")
    defaults = Path(os.environ.get("SPARK_CONF_DIR", spark_home() / "conf")) / "spark-defaults.conf"
    if not given and not defaults.exists():
        return ""
    try:
        return Path(given[-1] if given else defaults).read_text("utf-8", "replace")
    except OSError as error:
        raise ValueError(f"--properties-file: {error.filename} cannot be read: {error.strerror}") from None


def code_archive() -> Path:
    """The zip of the code as it is now; its name is its content, so it is made again only for other content."""
    archive = _folder() / f"lakelog-{_digest()}.zip"
    if not archive.exists():
        _write(archive)
    return archive


def _folder() -> Path:
    """The environment's own folder. A name in /tmp that others can guess would let them slip us their code."""
    if os.access(sys.prefix, os.W_OK):
        folder = Path(sys.prefix, "cache", "code")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(tempfile.mkdtemp(prefix="lakelog-"))


def _files() -> Iterator[Path]:
    """In a checkout the folders of the package are links."""
    folders = (found for root in (PACKAGE, _DATA_SOURCE) for found in os.walk(root, followlinks=True))
    for folder, _, names in sorted(folders):
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _digest() -> str:
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _write(archive: Path) -> None:
    """By way of a rename: brokers that start together may all be making it."""
    scratch = archive.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as file:
        for path in _files():
            file.write(path, path.relative_to(SOURCES))
    scratch.replace(archive)
