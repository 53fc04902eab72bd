"""Our code as a guest in a Python worker of Spark."""

import subprocess
import sys

# Spark's daemon collects garbage after each task of a worker.
WORKER = """
import gc, weakref
from lakelog.replication.clients.spark_worker import keep_imports, plain_errors, plain_iteration

class Cycle:
    def __init__(self):
        self.me = self

@plain_errors
def task():
    return weakref.ref(Cycle())

before = len(gc.get_objects())
made = [task(), task()]
after = len(gc.get_objects())
list(plain_iteration(iter(())))
keep_imports()
print(after < before / 10, gc.get_freeze_count() > before / 2)
gc.collect()
print([each() for each in made])
"""


def test_a_worker_collects_what_its_tasks_leave_but_not_its_modules():
    found = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("True True\n[None, None]\n", "")
