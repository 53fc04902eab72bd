"""The tables that `python -m tests.house` prints."""

from tests.house import calls, forwarding, importers, reached, tables
from tests.test_house import Source

FOUND = [
    Source("jobs/a.py", "from lakelog.jobs.b import B, helper\n\n\ndef main():\n    helper()\n    B().go(1)"),
    Source(
        "jobs/b.py",
        "from dataclasses import swap\n\n\ndef helper():\n    helper()\n    swap('a'.title())\n\n\n"
        "class B:\n    def go(self, x):\n        return self._go(x)\n\n    def title(self):\n        pass\n\n"
        "    def _go(self, x):\n        return x\n\n    def swap(self, x, y):\n        return self.go(y, x)",
    ),
]


def test_a_module_has_the_importers_that_it_has():
    assert importers(FOUND) == {"jobs.a": set(), "jobs.b": {"jobs.a"}}


def test_only_a_method_that_passes_its_own_arguments_on_forwards():
    assert list(forwarding(FOUND[1])) == ["jobs.b.B.go"]


def test_a_call_is_found_by_import_class_and_name_and_a_recursion_counts_once():
    seen, chain = reached(calls(FOUND), "jobs.a.main")
    assert chain == ["jobs.a.main", "jobs.b.B.go", "jobs.b.B._go"]
    assert seen == {*chain, "jobs.b.helper", "jobs.b.B"}


def test_a_call_of_something_that_is_not_ours_reaches_nothing_of_ours_with_the_same_name():
    assert calls(FOUND)["jobs.b.helper"] == set()


def test_a_plain_name_is_no_method():
    """It may be a parameter, or a function of Python."""
    found = Source("jobs/c.py", "class C:\n    def run(self, go):\n        go()\n        run()\n        vars(self)")
    assert calls([*FOUND, found])["jobs.c.C.run"] == set()


def test_every_table_has_rows():
    assert [table.row_count > 0 for table in tables()] == [True] * 5
