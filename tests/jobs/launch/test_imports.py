"""What a verb without Spark imports: its time is the time of its imports."""

import subprocess
import sys

from lakelog.jobs.launch.launcher import VERBS

# Each takes a tenth of a second or more, and no verb without Spark needs it.
HEAVY = ("pandas", "pyspark", "py4j", "delta", "pyarrow.dataset", "IPython", "matplotlib", "moto")

CALLED = """
import sys
from importlib import import_module
from lakelog.jobs.__main__ import main

for words in (["topics", "--list"], ["status"], ["brokers"], ["get-offsets"], ["consumer-groups", "--list"]):
    sys.argv = ["lakelog", *words, "--cluster", sys.argv[-1]]
    main()
"""
IMPORTED = """
for module in {modules}:
    import_module(module)
print("imported", *({heavy} & sys.modules.keys()))
"""


def test_a_verb_without_spark_imports_neither_spark_nor_pandas(cluster: str) -> None:
    modules = [verb.module for verb in VERBS.values() if not verb.needs_spark]
    program = CALLED + IMPORTED.format(modules=modules, heavy=set(HEAVY))
    done = subprocess.run(
        [sys.executable, "-c", program, cluster], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1].split() == ["imported"]
