"""Reads event scripts. It reports every mistake before anything runs, with file, line and the allowed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from lakelog.verification.scenarios.step_arguments import (
    POSITIVE,
    REQUIRED,
    SHORT,
    STORE,
    TEXT,
    Argument,
    ArgumentKind,
    steps_for,
)

_BROKERS = 3
_KEYS = ("name", "brokers", "cluster_roots", "store", "steps")


class ScriptError(ValueError):
    """A script that cannot run. The message is one line: place, reason and the allowed values."""


@dataclass(frozen=True)
class Step:
    """One step: its name, all its arguments, the arguments that the script gives, and its line."""

    name: str
    arguments: Mapping[str, Any]
    given: Mapping[str, Any]
    line: int

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.given.items())])


@dataclass(frozen=True)
class Script:
    """A script for a cluster of `brokers` brokers.

    `cluster_roots`: how many the cluster must have; 0: any number. `store`: where its roots must be, a value of
    `--store`; None: anywhere.
    """

    path: str
    name: str
    brokers: int
    steps: tuple[Step, ...]
    cluster_roots: int = 0
    store: str | None = None

    @property
    def has_several_roots(self) -> bool:
        """Whether its cluster has several roots, or gets them."""
        return self.cluster_roots > 1 or any(step.name == "add_cluster_roots" for step in self.steps)


def read_script(path: str) -> Script:
    """Reads the script in a file. Raises ScriptError if it is not valid."""
    try:
        return _Reader(path, Path(path).read_text("utf-8")).script()
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror}; name a script, which is a YAML file") from None
    except UnicodeDecodeError:
        raise ScriptError(f"{path}: cannot be read: it is not UTF-8; a script is a YAML file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ScriptError(f"{path}:{mark.line + 1 if mark else 1}: {why}; it must be YAML") from None


class _Reader:
    """Reads the nodes of one file, because plain values would not have line numbers."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._loader = yaml.SafeLoader(text)
        self._root = self._loader.get_single_node()

    def script(self) -> Script:
        if self._root is None:
            raise ScriptError(f"{self._path}:1: is empty; a script has {', '.join(_KEYS)}")
        entries = self._entries(self._root, "a script")
        for name, (key, _) in entries.items():
            if name not in _KEYS:
                self._fail(key, f"{name} is not known; a script has {', '.join(_KEYS)}")
        for name in ("name", "steps"):
            if name not in entries:
                self._fail(self._root, f"{name} is missing; a script has {', '.join(_KEYS)}")

        def value(name: str, kind: ArgumentKind, default: Any = None) -> Any:
            return self._parse(*entries[name], kind, name) if name in entries else default

        brokers, name = value("brokers", POSITIVE, _BROKERS), value("name", TEXT)
        roots, store = value("cluster_roots", POSITIVE, 0), value("store", STORE)
        return Script(self._path, name, brokers, self._steps(entries["steps"][1], brokers), roots, store)

    def _steps(self, node: yaml.Node, brokers: int) -> tuple[Step, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._fail(node, "steps must be a list of steps, - kill: 1")
        known = steps_for(range(1, brokers + 1))
        return tuple(self._step(item, known) for item in node.value)

    def _step(self, node: yaml.Node, known: Mapping[str, Mapping[str, Argument]]) -> Step:
        entries = self._entries(node, "a step")
        if len(entries) != 1:
            self._fail(node, f"a step has one name, - kill: 1, and this one has {len(entries)}")
        ((name, (key, value)),) = entries.items()
        line = key.start_mark.line + 1
        if name not in known:
            raise ScriptError(f"step {name} at {self._path}:{line} is not known; known are {', '.join(known)}")
        if name in SHORT and not isinstance(value, yaml.MappingNode):
            only = SHORT[name]
            given = {only: self._argument(key, value, known[name][only], name)}
        else:
            given = self._arguments(value, known[name], name)
        defaults = {argument: kind.default for argument, kind in known[name].items()}
        return Step(name, {**defaults, **given}, given, line)

    def _arguments(self, node: yaml.Node, known: Mapping[str, Argument], what: str) -> dict[str, Any]:
        """The given arguments, checked."""
        entries = self._entries(node, what)
        for name, (key, _) in entries.items():
            if name not in known:
                self._fail(key, f"{what}: argument {name} is not known; known are {', '.join(known) or 'none'}")
        for name, argument in known.items():
            if argument.default is REQUIRED and name not in entries:
                self._fail(node, f"{what}: argument {name} is missing; there are {', '.join(known)}")
        return {name: self._argument(*entry, known[name], f"{what}: {name}") for name, entry in entries.items()}

    def _argument(self, key: yaml.Node, value: yaml.Node, argument: Argument, what: str) -> Any:
        if isinstance(argument.kind, ArgumentKind):
            return self._parse(key, value, argument.kind, what)
        return self._arguments(value, argument.kind, what)

    def _parse(self, key: yaml.Node, node: yaml.Node, kind: ArgumentKind, what: str) -> Any:
        value = self._loader.construct_object(node, deep=True)
        try:
            return kind.parse(value)
        except ValueError:
            self._fail(key, f"{what} is {value!r}, it must be {kind.allowed}")

    def _entries(self, node: yaml.Node, what: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Keys with their nodes. Without this check YAML would silently use the last of two equal keys."""
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"{what} must be a mapping, {{name: value}}")
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in entries:
                self._fail(key, f"{what} has {name} twice; once is allowed")
            entries[name] = (key, value)
        return entries

    def _fail(self, node: yaml.Node, why: str) -> NoReturn:
        raise ScriptError(f"{self._path}:{node.start_mark.line + 1}: {why}")
