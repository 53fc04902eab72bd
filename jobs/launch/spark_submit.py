"""The arguments of spark-submit: the user's own, and ours for what the user left open.

A verb's Python process is the parent. It starts its JVM through spark-submit, with PYSPARK_SUBMIT_ARGS. So SIGTERM
reaches the process that a person or a supervisor has started, and that can shut down in order.
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

# The options of spark-submit, which may stand before or after the verb. So no verb may have an option of such a name.
OPTIONS = frozenset(
    """
    --archives --conf --deploy-mode --driver-class-path --driver-cores --driver-java-options --driver-library-path
    --driver-memory --exclude-packages --executor-cores --executor-memory --files --jars --keytab --master --name
    --num-executors --packages --principal --properties-file --proxy-user --py-files --queue --repositories
    --total-executor-cores
    """.split()
)

# Settings of --conf that are options too. spark-submit ignores such a setting beside its option, so it becomes one.
CONFS = {
    "spark.jars": "--jars",
    "spark.jars.packages": "--packages",
    "spark.master": "--master",
    "spark.submit.deployMode": "--deploy-mode",
    "spark.submit.pyFiles": "--py-files",
}

# Spark puts these before the options that a user gives the driver's JVM. Of two equal options the last one wins.
_JAVA_DEFAULTS = "spark.driver.defaultJavaOptions"

# Environment variables with options of the JVM. Our defaults, on its command line, would win over them.
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")

# The JVM starts Python workers by a helper program of the JDK. After an upgrade of the JDK, the new helper would refuse
# a JVM that was started before, and it could start no more workers. With this option it needs no helper.
_WITHOUT_HELPER = "-Djdk.lang.Process.launchMechanism=VFORK"

Options = list[tuple[str, str]]

_SHELL = "pyspark-shell"  # the last word of PYSPARK_SUBMIT_ARGS: the driver is not started by spark-submit

PACKAGE = Path(__file__).parents[2].resolve()  # resolved last: in a checkout the folders inside of it are links
SOURCES = PACKAGE.parent  # in a checkout its top folder, which has `conf` too
_DATA_SOURCE = SOURCES / "pyspark_lakelog"  # the package in which Spark finds `format("lakelog")`


def split_arguments(words: list[str]) -> tuple[Options, list[str]]:
    """The options of spark-submit among these words, and the other words. All words after `--` are others."""
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


def _option(name: str, value: str) -> tuple[str, str]:
    key, _, setting = value.partition("=")
    return (CONFS[key], setting) if name == "--conf" and key in CONFS else (name, value)


def _value(name: str, queue: Iterator[str]) -> str:
    value = next(queue, None)
    if value is None:
        raise ValueError(f"{name} needs a value")
    return value


def with_java_options(options: Options, wanted: str) -> Options:
    """`options`, with `wanted` as the default options of the driver's JVM. Unchanged if the user has set defaults, or
    has chosen a compiler in the environment."""
    is_set = any(name == "--conf" and value.partition("=")[0] == _JAVA_DEFAULTS for name, value in options)
    is_set |= re.search(rf"^\s*{re.escape(_JAVA_DEFAULTS)}[\s=:]", _properties(options), re.MULTILINE) is not None
    is_chosen = any("Tiered" in os.environ.get(name, "") for name in _JAVA_VARIABLES)
    return [*options, ("--conf", f"{_JAVA_DEFAULTS}={wanted}")] if wanted and not (is_set or is_chosen) else options


def _properties(options: Options) -> str:
    """The text of the properties file that spark-submit will read: that of the option, or else the default one, if it
    exists. Raises ValueError if the file cannot be read."""
    given = _values(options, "--properties-file")
    defaults = Path(os.environ.get("SPARK_CONF_DIR", spark_home() / "conf")) / "spark-defaults.conf"
    if not given and not defaults.exists():
        return ""
    try:
        return Path(given[-1] if given else defaults).read_text("utf-8", "replace")
    except OSError as error:
        raise ValueError(f"--properties-file: {error.filename} cannot be read: {error.strerror}") from None


def spark_environment(options: Options, flags: Sequence[str] = ()) -> dict[str, str]:
    """The environment variables with which a PySpark driver starts its JVM: `options`, `flags` such as --verbose, and
    our defaults."""
    if ("--deploy-mode", "cluster") in options:
        raise ValueError("--deploy-mode cluster starts the driver elsewhere: use spark-submit itself for it")
    master = _master(options)
    variables = {
        # Spark's own search for its home fails on a path with spaces.
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
        # Spark starts the driver's Python by a shell, without quotes, to find data sources in Python. So a path that
        # needs quotes must not be in the command, but in PATH.
        folder, variables["PYSPARK_DRIVER_PYTHON"] = os.path.split(sys.executable)
        variables["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
    if re.match(r"local|spark://(localhost|127\.)", master):
        # A laptop's host name may resolve to an address that it had in another network.
        variables["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    return variables


def session_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The variables for a program that makes a session by itself. `settings` come after those of PYSPARK_SUBMIT_ARGS,
    and win over them."""
    given = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    options, rest = split_arguments([*given, *(f"--conf={name}={value}" for name, value in settings.items())])
    return spark_environment(options, [word for word in rest if word != _SHELL])


def spark_home() -> Path:
    """The Spark that PySpark will start: that of SPARK_HOME, or else the one in PySpark's own package."""
    if given := os.environ.get("SPARK_HOME"):
        return Path(given)
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ValueError("PySpark is not installed: pip install 'lakelog[spark]'")
    return Path(found.origin).parent


def _master(options: Options) -> str:
    """The master that spark-submit will use: the option, or else the properties file's, or else local[*]."""
    found = re.search(r"^\s*spark\.master[\s=:]+(\S+)", _properties(options), re.MULTILINE)
    return [found[1] if found else "local[*]", *_values(options, "--master")][-1]


def _values(options: Options, name: str) -> list[str]:
    return [value for key, value in options if key == name]


def _submit_words(options: Options, master: str) -> list[str]:
    """The words for spark-submit. Jars, packages and Python files are one list each, because spark-submit takes only
    the last of two."""
    delta = _delta(options)
    archives = [] if re.fullmatch(r"local(\[.*\])?", master) else [str(code_archive())]
    lists = {
        "--jars": [*_values(options, "--jars"), *delta.get("--jars", [])],
        "--packages": [*_values(options, "--packages"), *delta.get("--packages", [])],
        "--py-files": [*_values(options, "--py-files"), *archives],
    }
    words = [word for name, value in options if name not in lists for word in (name, value)]
    return words + [word for name, values in lists.items() if values for word in (name, _joined(values))]


def _joined(lists: Iterable[str]) -> str:
    """Lists as one, with each item once: a verb's process adds its defaults again to those of its launcher."""
    return ",".join(dict.fromkeys(",".join(lists).split(",")))


def _delta(options: Options) -> dict[str, list[str]]:
    """The option that brings Delta: its jars in this environment, or else its name for a registry. Empty if it is there
    already."""
    if is_delta_there(options):
        return {}
    jars = sorted(str(jar) for jar in Path(sys.prefix, "jars").glob("*.jar"))
    return {"--jars": jars} if jars else {"--packages": [DELTA_PACKAGE]}


def is_delta_there(options: Options) -> bool:
    """Whether the user's options or Spark's own jars bring Delta."""
    brought = any("delta-spark" in value for name in ("--jars", "--packages") for value in _values(options, name))
    return brought or any((spark_home() / "jars").glob("delta-spark*.jar"))


def _submit_opts() -> str:
    """SPARK_SUBMIT_OPTS of the environment, after our option: of two equal options the JVM takes the last."""
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    return given if _WITHOUT_HELPER in given else f"{_WITHOUT_HELPER} {given}".strip()


def _conf_folder() -> Path | None:
    """The folder with our settings for Spark. None if this Spark has settings of its own."""
    if "SPARK_CONF_DIR" in os.environ or (spark_home() / "conf" / "spark-defaults.conf").exists():
        return None
    folders = (SOURCES / "conf", Path(sys.prefix, "share", "lakelog", "conf"))
    return next((folder for folder in folders if (folder / "spark-defaults.conf").exists()), None)


def _worker_path() -> list[str]:
    """PYTHONPATH for local workers, which do not get the driver's `sys.path`: with our sources, unless they are
    installed."""
    given = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    found = {*given, *site.getsitepackages(), site.getusersitepackages()}
    return given if str(SOURCES) in found else [*given, str(SOURCES)]


def code_archive() -> Path:
    """The zip of the code as it is now. Its name has a digest of the code, so it is made again only if that changes."""
    archive = _archive_folder() / f"lakelog-{_digest()}.zip"
    if not archive.exists():
        _write(archive)
    return archive


def _archive_folder() -> Path:
    """A folder of the environment, or else a new one in /tmp. A name in /tmp that other users can guess would let them
    put their code there."""
    if os.access(sys.prefix, os.W_OK):
        folder = Path(sys.prefix, "cache", "code")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(tempfile.mkdtemp(prefix="lakelog-"))


def _digest() -> str:
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _files() -> Iterator[Path]:
    """The Python files of the package and of the data source. In a checkout the folders of the package are links."""
    folders = (found for root in (PACKAGE, _DATA_SOURCE) for found in os.walk(root, followlinks=True))
    for folder, _, names in sorted(folders):
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _write(archive: Path) -> None:
    """Writes the zip under another name, and renames it: brokers that start together may all be writing it."""
    scratch = archive.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as file:
        for path in _files():
            file.write(path, path.relative_to(SOURCES))
    scratch.replace(archive)
