"""The house style as tests: layers, words, docstrings, dead files, verbs.

A message names file, line and rule. Each rule is a function from a source to its faults, so that the tests at the end
can show it bad examples.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent
FOLDERS = ("jobs", "replication", "schemas", "verification")
PACKAGE = "lakelog"  # what is imported: its folders are links to those of the checkout
DATA_SOURCE = "pyspark_lakelog"  # the name that Spark looks for
OURS = (*FOLDERS, PACKAGE, DATA_SOURCE, "tests")

_BASE = ("schemas", "replication.errors", "replication.error_log", "replication.config", "replication.properties")
_TABLES = (*_BASE, "replication.protocol", "replication.storage.in_threads")
_LOWER = (*_BASE, "replication.protocol", "replication.frames", "replication.storage")

# What each layer may import of ours, besides itself. A module belongs to the longest name here that begins its own.
ARROWS: dict[str, tuple[str, ...]] = {
    "schemas": (),
    "replication": ("schemas", "replication"),  # what stands above the layers: local_cluster
    **dict.fromkeys(("replication.errors", "replication.storage.parquet"), ()),
    **dict.fromkeys(("replication.properties", "replication.error_log"), ("replication.errors",)),
    "replication.config": ("schemas", "replication.errors", "replication.properties"),
    "replication.protocol": ("schemas", "replication.errors"),
    "replication.frames": ("schemas",),
    "replication.storage": (*_BASE, "replication.protocol", "replication.storage"),
    "replication.storage.delta": _TABLES,
    "replication.storage.log": (*_TABLES, "replication.storage.delta", "replication.storage.parquet"),
    "replication.storage.tables": (*_TABLES, "replication.storage.delta", "replication.storage.log.log_txns"),
    "replication.server": _LOWER,
    "replication.controller": (*_BASE, "replication.protocol"),  # it decides, and touches no table
    **{
        f"replication.controller.{name}": (*_LOWER, "replication.controller")
        for name in ("controller_server", "active_controller", "group_expiration")
    },
    "replication.clients": _LOWER,
    "jobs": ("schemas", "replication"),
    "verification": ("schemas", "replication", "jobs", "verification"),  # nothing that ships imports it
    "verification.simulation": tuple(f"replication.{name}" for name in ("errors", "config", "protocol", "controller")),
    "verification.simulation.stack": (  # it drives all that ships
        *("schemas", "replication", "verification.simulation", "verification.memory_root"),
    ),
    "verification.simulation.tiers": ("verification.simulation",),
    PACKAGE: ("jobs.launch", "replication"),  # the public face: nothing inside imports it
    DATA_SOURCE: ("replication.clients",),
    "tests": OURS,
}

# The protocol touches nothing, so this names what it may use; a clock, a random number or a file is not among it, a
# hash function and a parser of text are.
PURE = frozenset(
    """
    __future__ abc bisect blake3 collections contextlib dataclasses difflib enum functools graphlib hashlib heapq
    itertools json math operator re string struct types typing
    """.split()
)

# Only storage knows that logs are written by delta-rs and where their bytes lie.
STORAGE_ONLY = ("deltalake", "obstore", "pyarrow.fs")

# In pieces, so that this file does not hold them.
BANNED = {
    "unfinished work": re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b"),
    "sleep: wait for an event": re.compile(r"\btime\." + r"sleep\b"),
    "a test that does not run": re.compile(r"pytest\.(mark\.)?(sk" + r"ip|xf" + r"ail)|import" + r"orskip"),
    "a registry's host: clients know theirs": re.compile(r"(pypi|pythonhosted|maven|spark-packages)\." + r"(org|com)"),
    "a path of one machine": re.compile(r"(^|[\s\"'=(])/(wo" + r"rk|tmp/tr" + r"ial|ro" + r"ot)/"),
    "UDF: an expression is faster": re.compile(r"\b(F\.u" + r"df|pandas_u" + r"df|functions\.u" + r"df)\b"),
}


@dataclass(frozen=True)
class Source:
    """A file of Python."""

    path: str
    text: str

    @cached_property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def at(self, line: int, fault: str) -> str:
        return f"{self.path}:{line}: {fault}"


def sources(*folders: str) -> list[Source]:
    return [_source(path) for folder in folders for path in sorted((HOUSE / folder).rglob("*.py"))]


@cache  # all rules look at the same tree
def _source(path: Path) -> Source:
    return Source(path.relative_to(HOUSE).as_posix(), path.read_text("utf-8"))


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported; `from a import b` is both a, and a.b, which may be a module."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, _in_checkout(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(source, node)
            yield from ((node.lineno, _in_checkout(f"{base}.{alias.name}")) for alias in node.names)


def _in_checkout(name: str) -> str:
    """The name inside the checkout: `lakelog.jobs` is the folder `jobs`; `lakelog.Producer` stays."""
    inner = name.removeprefix(f"{PACKAGE}.")
    return inner if within(inner, *FOLDERS) else name


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    is_package = source.path.endswith("/__init__.py")
    parents = source.module.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
    return ".".join([*(parents if node.level else []), *([node.module] if node.module else [])])


def layer(module: str) -> str:
    return max((name for name in ARROWS if within(module, name)), key=len)


def wrong_arrows(source: Source) -> Iterator[str]:
    own = layer(source.module)
    for line, name in imports(source):
        if within(name, *OURS) and not _is_allowed(own, name):
            yield source.at(line, f"{own} may not import {name}")


def _is_allowed(own: str, name: str) -> bool:
    """`from replication import errors` names the package and means the module: the full name counts."""
    return layer(name) == own or within(name, *ARROWS[own])


def imports_of_a_second_copy(source: Source) -> Iterator[str]:
    """A module that is imported under two names is there twice, and so are its classes."""
    for node in ast.walk(source.tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        for name in names:
            if within(name, *FOLDERS):
                yield source.at(node.lineno, f"import {PACKAGE}.{name}: {name} is another module to Python")


def impure_imports(source: Source) -> Iterator[str]:
    for line, name in imports(source):
        if not within(name, *OURS) and name.split(".")[0] not in PURE:
            yield source.at(line, f"the protocol touches nothing, {name} does")


def storage_imports(source: Source) -> Iterator[str]:
    for line, name in imports(source):
        if within(name, *STORAGE_ONLY):
            yield source.at(line, f"only replication/storage may import {name}")


def import_circle(found: list[Source]) -> Iterator[str]:
    """One circle of imports, if there is any; an import in a function or for the type checker counts too."""
    modules = {source.module for source in found}
    graph = {
        source.module: {_known(name, modules) for _, name in imports(source)} - {source.module, ""} for source in found
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield " imports ".join(reversed(error.args[1]))


def _known(name: str, modules: set[str]) -> str:
    """The module that an imported name is, or is of; empty if it is not ours."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def classes_of_one_name(found: list[Source]) -> Iterator[str]:
    places: dict[str, str] = {}
    for source in found:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                first = places.setdefault(node.name, source.at(node.lineno, node.name))
                if first != source.at(node.lineno, node.name):
                    yield source.at(node.lineno, f"{node.name} is {first.rpartition(':')[0]} too")


def modules_of_one_name(found: list[Source]) -> Iterator[str]:
    """A reader who searches for a module by its name finds one."""
    places: dict[str, str] = {}
    for source in found:
        name = source.module.rpartition(".")[2]
        if (
            not source.path.endswith(("/__init__.py", "/__main__.py"))
            and places.setdefault(name, source.path) != source.path
        ):
            yield source.at(1, f"{places[name]} has the same name")


def banned_words(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        yield from (f"{path}:{number}: {why}: {line.strip()}" for why, word in BANNED.items() if word.search(line))


def undocumented(source: Source) -> Iterator[str]:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [node for node in source.tree.body if isinstance(node, definitions) and not node.name.startswith("_")]
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield source.at(1, "a module says what it is for")
    for node in public:
        if not ast.get_docstring(node):
            yield source.at(node.lineno, f"{node.name} is public and says nothing")


def has_main(source: Source) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in source.tree.body)


def no_faults(faults: Iterator[str]) -> None:
    found = list(faults)
    assert not found, "\n" + "\n".join(found)


def test_layers_import_downwards_only() -> None:
    no_faults(fault for source in sources(*FOLDERS, PACKAGE, DATA_SOURCE) for fault in wrong_arrows(source))


def test_no_imports_in_a_circle() -> None:
    no_faults(import_circle(sources("replication", "schemas", "jobs")))


def test_no_two_classes_of_one_name() -> None:
    no_faults(classes_of_one_name(sources("replication", "schemas", "jobs")))


def test_no_two_modules_of_one_name() -> None:
    no_faults(modules_of_one_name(sources(*FOLDERS)))


def test_every_module_is_imported_under_one_name() -> None:
    no_faults(fault for source in sources(*OURS) for fault in imports_of_a_second_copy(source))


def test_protocol_touches_nothing() -> None:
    no_faults(fault for source in sources("replication/protocol") for fault in impure_imports(source))


def test_only_storage_knows_delta_rs_and_file_systems() -> None:
    found = sources("replication", "schemas")
    others = [source for source in found if not within(source.module, "replication.storage")]
    no_faults(fault for source in others for fault in storage_imports(source))


def test_no_banned_words() -> None:
    shipped = [HOUSE / "spark-submit.sh", HOUSE / "pyproject.toml", *(HOUSE / "conf").glob("*")]
    texts = [(path.relative_to(HOUSE).as_posix(), path.read_text("utf-8")) for path in shipped]
    texts += [(source.path, source.text) for source in sources(*OURS)]
    no_faults(fault for path, text in texts for fault in banned_words(path, text))


def test_public_names_have_docstrings() -> None:
    no_faults(fault for source in sources("replication", PACKAGE, DATA_SOURCE) for fault in undocumented(source))


def test_no_dead_files() -> None:
    """A module that nothing but its own test imports is dead."""
    names = {name for source in sources(*FOLDERS, PACKAGE, DATA_SOURCE) for _, name in imports(source)}
    modules = [
        source
        for source in sources("replication", "verification/simulation")
        if not source.path.endswith("/__init__.py")
    ]
    dead = [source for source in modules if not any(within(name, source.module) for name in names)]
    no_faults(source.at(1, "nothing imports it") for source in dead)


def test_every_job_with_a_main_is_a_verb_and_the_reverse() -> None:
    verbs = {verb.module for verb in import_module("lakelog.jobs.launch.launcher").VERBS.values()}
    found = {f"{PACKAGE}.{source.module}" for source in sources("jobs", "verification/verbs") if has_main(source)}
    jobs = found - {"lakelog.jobs.__main__"}
    assert jobs == verbs, f"not in VERBS: {sorted(jobs - verbs)}; without a module: {sorted(verbs - jobs)}"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("schemas/log.py", "import lakelog.replication.errors"),
        ("replication/protocol/isr.py", "from lakelog.replication import storage"),
        ("verification/simulation/world.py", "from lakelog.replication.server.broker_server import Broker"),
        ("verification/simulation/rules.py", "from lakelog.replication.storage.tables.topic_table import TopicTable"),
        ("jobs/quickstart.py", "from lakelog.verification.roots.roots import STORES"),
        ("replication/local_cluster.py", "from lakelog.verification.s3.server import main"),
        ("replication/controller/decision.py", "from lakelog.replication.storage.tables.topic_table import TopicTable"),
        ("replication/controller/decision.py", "from lakelog.replication.controller import active_controller"),
        ("replication/protocol/isr.py", "from ..storage import segment"),
        ("replication/frames/committed_records.py", "from lakelog.replication.protocol.isr import shrink"),
        ("replication/server/broker.py", "def f():\n    from lakelog.replication.controller import events"),
        ("replication/clients/admin.py", "from lakelog.replication.local_cluster import LocalCluster"),
        ("replication/local_cluster.py", "from lakelog.jobs.launch.session import spark_session"),
        ("replication/__init__.py", "from tests import conftest"),
        ("replication/server/broker.py", "from lakelog import Producer"),
        ("jobs/broker.py", "import lakelog"),
        ("lakelog/__init__.py", "from lakelog.jobs.cli.console import run"),
    ],
)
def test_a_wrong_arrow_is_seen(path: str, text: str) -> None:
    assert list(wrong_arrows(Source(path, text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("replication/protocol/isr.py", "from lakelog.replication.errors import NotLeader\nfrom . import fencing"),
        ("replication/protocol/__init__.py", "from .isr import shrink"),
        (
            "replication/storage/log/segment.py",
            "from lakelog.replication import errors\nimport lakelog.schemas.tables",
        ),
        (
            "replication/controller/active_controller.py",
            "from lakelog.replication.storage.cluster import Cluster\nfrom . import decision",
        ),
        (
            "jobs/broker.py",
            "from lakelog.replication.local_cluster import LocalCluster\nfrom lakelog.jobs.launch.session import f",
        ),
        ("lakelog/__init__.py", "from lakelog.replication.clients.producer import Producer"),
    ],
)
def test_a_right_arrow_is_not_a_fault(path: str, text: str) -> None:
    assert not list(wrong_arrows(Source(path, text)))


@pytest.mark.parametrize(
    "text",
    [
        "from lakelog.jobs.b import f",
        "from . import b",
        "if TYPE_CHECKING:\n    from lakelog.jobs import b",
        "def f():\n    import lakelog.jobs.b",
    ],
)
def test_a_circle_of_imports_is_seen(text: str) -> None:
    back = [Source("jobs/b.py", "from lakelog.jobs.c import g"), Source("jobs/c.py", "from lakelog.jobs.a import h")]
    (circle,) = import_circle([Source("jobs/a.py", text), *back])
    assert "jobs.a imports jobs.b imports jobs.c" in f"{circle} imports jobs.b imports jobs.c"
    assert not list(import_circle(back))


def test_a_class_whose_name_is_another_s_is_seen() -> None:
    one, other = Source("jobs/a.py", "class A: ...\nclass _B: ..."), Source("jobs/b.py", "class _B: ...")
    assert not list(classes_of_one_name([one, other]))
    (fault,) = classes_of_one_name([one, Source("schemas/c.py", "def f():\n    class A: ...")])
    assert fault == "schemas/c.py:2: A is jobs/a.py:1 too"


def test_a_module_whose_name_is_another_s_is_seen() -> None:
    found = [Source(path, "") for path in ("jobs/a.py", "jobs/b/__init__.py", "jobs/c/__init__.py", "replication/a.py")]
    assert list(modules_of_one_name(found)) == ["replication/a.py:1: jobs/a.py has the same name"]


@pytest.mark.parametrize("text", ["import time", "from os import path", "import pyarrow.compute", "import numpy as np"])
def test_an_impure_import_is_seen(text: str) -> None:
    assert list(impure_imports(Source("replication/protocol/isr.py", text)))


@pytest.mark.parametrize(
    "text", ["import deltalake", "import obstore", "from pyarrow import fs", "from pyarrow.fs import S3FileSystem"]
)
def test_an_import_of_storage_is_seen(text: str) -> None:
    assert list(storage_imports(Source("replication/server/broker.py", text)))


@pytest.mark.parametrize(
    "words",
    [
        ("# TO", "DO: later"),
        ("raise NotImplemented", "Error"),
        ("time.", "sleep(1)"),
        ("@pytest.mark.", "skip"),
        ("https://repo1.maven", ".org/maven2"),
        ('ROOT = "', "/tmp/", 'trial/x"'),
        ("F.u", "df(f)"),
    ],
)
def test_a_banned_word_is_seen(words: tuple[str, ...]) -> None:
    assert list(banned_words("replication/x.py", "".join(words)))


def test_an_undocumented_function_is_seen() -> None:
    assert len(list(undocumented(Source("replication/x.py", "def f():\n    pass\n")))) == 2
