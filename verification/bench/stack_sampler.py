"""Samples the stacks of this process's Python threads and of Spark's JVM, and counts the CPU time of each stack.

A sample of a Python thread weighs as much CPU time as the thread has used since the sample before, so a thread that
waits weighs nothing. The JVM is sampled by its own Flight Recorder.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from lakelog.verification.bench.flame_graph import Stack
from lakelog.verification.bench.thread_cpu import (
    DRIVER_GROUPS,
    JVM_GROUPS,
    cpu_now,
    cpu_since,
    group_of,
    thread_seconds,
)

_PAUSE_SECONDS = 0.005
_JVM_EVENT, _JVM_PERIOD_MS, _JVM_DEPTH = "jdk.ExecutionSample", 10, 64


class StackSampler:
    """Samples while `sampling` is entered. `stacks` has the CPU seconds of each stack afterwards."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._seen: dict[Stack, float] = {}
        self._cpu: dict[str, float] = {}

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Samples until the block ends."""
        before, done = cpu_now(), threading.Event()
        sampler = threading.Thread(target=self._sample, args=(done,), name="stack-sampler", daemon=True)
        recording = self._start_recording()
        sampler.start()
        try:
            yield
        finally:
            done.set()
            sampler.join()
            self._cpu = cpu_since(before)
            if recording is not None:
                self._read(recording)

    def stacks(self) -> dict[Stack, float]:
        """The CPU seconds of each stack. The first name is that of the group of threads; a group whose stacks are not
        known has that name alone."""
        found: dict[Stack, float] = {}
        for group, seconds in self._cpu.items():
            known = {stack: weight for stack, weight in self._seen.items() if stack[0] == group}
            whole = sum(known.values())
            found.update(
                {stack: seconds * weight / whole for stack, weight in known.items()} if whole else {(group,): seconds}
            )
        return {stack: seconds for stack, seconds in found.items() if seconds > 0}

    def _sample(self, done: threading.Event) -> None:
        used: dict[int, float] = {}
        while not done.wait(_PAUSE_SECONDS):
            frames = sys._current_frames()
            for thread in threading.enumerate():
                frame = frames.get(thread.ident or 0)
                if frame is None or thread is threading.current_thread() or thread.native_id is None:
                    continue
                with suppress(FileNotFoundError, ProcessLookupError):
                    now = thread_seconds(Path(f"/proc/{os.getpid()}/task/{thread.native_id}"))
                    spent = now - used.get(thread.native_id, now)
                    used[thread.native_id] = now
                    if spent > 0:
                        self._add((group_of(thread.name, DRIVER_GROUPS), *_python_stack(frame)), spent)

    def _add(self, stack: Stack, weight: float) -> None:
        self._seen[stack] = self._seen.get(stack, 0.0) + weight

    def _start_recording(self) -> Any:
        """A running recording of the JVM's stacks; None if this JVM has no Flight Recorder."""
        try:
            recording = self._jvm.jdk.jfr.Recording()
            recording.enable(_JVM_EVENT).withPeriod(self._jvm.java.time.Duration.ofMillis(_JVM_PERIOD_MS))
            recording.start()
        except Exception:  # py4j's: this JVM comes without the class
            return None
        return recording

    def _read(self, recording: Any) -> None:
        recording.stop()
        with tempfile.NamedTemporaryFile(suffix=".jfr") as file:
            path = self._jvm.java.io.File(file.name).toPath()
            recording.dump(path)
            recording.close()
            events = self._jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(path)
            for event in events:
                stack = _java_stack(event)
                if stack:
                    self._add(stack, 1.0)


def _python_stack(frame: FrameType | None) -> Stack:
    names: list[str] = []
    while frame is not None:
        module = str(frame.f_globals.get("__name__", "")).removeprefix("lakelog.replication.")
        names.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return tuple(reversed(names))


def _java_stack(event: Any) -> Stack:
    """The group of the sampled thread and its methods; empty if the event has none."""
    trace, thread = event.getStackTrace(), event.getThread("sampledThread")
    if trace is None or thread is None:
        return ()
    frames = list(trace.getFrames())[:_JVM_DEPTH]
    methods = [(method.getType().getName().rpartition(".")[2], method.getName()) for method in map(_method, frames)]
    names = [
        f"{type_name}.{name}" for type_name, name in methods if not type_name.isdigit()
    ]  # digits: a lambda's class
    return group_of((thread.getOSName() or "")[:15], JVM_GROUPS), *reversed(names)


def _method(frame: Any) -> Any:
    return frame.getMethod()
