"""What a verb without Spark imports: its time is the time of its imports. What imports say."""

import os
import subprocess
import sys

from lakelog.jobs.launch.launcher import VERBS

# Each takes a tenth of a second or more, and no verb without Spark needs it.
HEAVY = ("pandas", "pyspark", "py4j", "delta", "pyarrow.dataset", "IPython", "matplotlib")

CALLED = """
import sys
from importlib import import_module
from lakelog.jobs.__main__ import main

for words in (
    ["topics", "--list"], ["status"], ["brokers"], ["what-if", "--kill", "1"], ["get-offsets"],
    ["consumer-groups", "--list"],
):
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


WITHOUT_CREDENTIALS = """
import lakelog
try:
    lakelog.AdminClient("s3://bucket/cluster")
except lakelog.LakelogException as error:
    print(error)
"""


def test_missing_credentials_are_one_sentence_on_stderr() -> None:
    """delta-rs would warn of each place where it has looked for them, here a port where nobody listens."""
    of_stores = ("AWS_", "RUST_LOG")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(of_stores)}
    environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CREDENTIALS], env=environment, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert (done.stdout.count("there are no credentials for it"), done.stderr) == (1, "")
