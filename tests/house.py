"""`python -m tests.house`: tables for a reviewer of the structure. It judges nothing, and nothing fails by it.

A function is found in its module or by an import, a method in the same class, or if the product has its name only once
and no type of Python has such a method. So chains through steps, callbacks and methods of common names (`run`, `read`)
end early, and the numbers are least ones.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from rich.console import Console
from rich.table import Table

from tests.test_house import FOLDERS, Source, imports, sources, within

SHOWN = 15
PYTHONS = {name for each in (str, bytes, list, tuple, dict, set, Counter) for name in dir(each)} | {"_replace"}
ENTRANCES = {
    "a send": "replication.clients.producer.Producer.send_async",
    "a fetch": "replication.server.fetcher.fetch_runner.FetchRunner.run",
    "a read": "replication.clients.reader.read_committed",
    "a failover": "replication.controller.controller_server.Controller.round",
    "a verb": "jobs.topics.carry_out",
}


def importers(found: Iterable[Source]) -> dict[str, set[str]]:
    """The modules of the project that import each module, itself left out."""
    by_module = {source.module: source for source in found}
    users: dict[str, set[str]] = {module: set() for module in by_module}
    for source in by_module.values():
        for _, name in imports(source):
            known = next((module for module in (name, name.rpartition(".")[0]) if module in users), None)
            if known and known != source.module:
                users[known].add(source.module)
    return users


def forwarding(source: Source) -> Iterator[str]:
    """The methods that only call another one with their own arguments, except for dunders and properties."""
    for owner in (node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)):
        for method in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            body = [node for node in method.body if not _is_docstring(node)]
            own = [arg.arg for arg in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)][1:]
            if len(body) == 1 and not method.name.startswith("__") and not method.decorator_list:
                value = body[0].value if isinstance(body[0], ast.Return | ast.Expr) else None
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and own == _passed(value):
                    yield f"{source.module}.{owner.name}.{method.name}"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _passed(call: ast.Call) -> list[str | None]:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [value.id if isinstance(value, ast.Name) else None for value in values]


def calls(found: Iterable[Source]) -> dict[str, set[str]]:
    """The functions and methods that each one calls, by full name; a class stands for its constructor."""
    found = list(found)
    bodies = {name: node for source in found for name, node in _definitions(source.tree, source.module)}
    short = Counter(name.rpartition(".")[2] for name in bodies)
    only = {last: name for name in bodies if short[last := name.rpartition(".")[2]] == 1}
    graph: dict[str, set[str]] = {}
    for source in found:
        known = {name.rpartition(".")[2]: name for _, name in imports(source)}
        for name, node in _definitions(source.tree, source.module):
            owner = name.rpartition(".")[0]
            targets = (
                (known.get(last) or f"{source.module}.{last}")
                if on is None
                else (f"{owner}.{last}" if on == "self" and f"{owner}.{last}" in bodies else None)
                or (only.get(last) if last not in PYTHONS else None)
                for on, last in _called(node)
            )
            graph[name] = {target for target in targets if target in bodies} - {name}
    return graph


def _definitions(tree: ast.AST, within_name: str) -> Iterator[tuple[str, ast.AST]]:
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within_name}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield f"{within_name}.{node.name}", ast.Module([each for each in node.body if _is_constructor(each)], [])
            yield from _definitions(node, f"{within_name}.{node.name}")


def _is_constructor(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name in ("__init__", "__post_init__")


def _called(node: ast.AST) -> Iterator[tuple[str | None, str]]:
    """The names that are called, each with the name on which it is called: None for a plain name."""
    for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
        if isinstance(call.func, ast.Name):
            yield None, call.func.id
        elif isinstance(call.func, ast.Attribute):
            yield call.func.value.id if isinstance(call.func.value, ast.Name) else "", call.func.attr


def reached(graph: dict[str, set[str]], start: str) -> tuple[set[str], list[str]]:
    """All that an entrance reaches, and the longest chain of calls from it, each function at most once."""
    seen, todo = {start}, [start]
    while todo:
        todo += (new := graph.get(todo.pop(), set()) - seen)
        seen |= new
    inner = {name: graph[name] & seen for name in seen if name in graph}
    while True:
        try:
            order = list(TopologicalSorter(inner).static_order())
            break
        except CycleError as error:  # a recursion counts once
            inner[error.args[1][1]] = inner[error.args[1][1]] - {error.args[1][0]}
    longest: dict[str, list[str]] = {}
    for name in order:
        longest[name] = [name, *max((longest[called] for called in inner.get(name, ())), key=len, default=[])]
    return seen, longest[start]


def tables() -> Iterator[Table]:
    """The tables that the command prints."""
    found = [source for source in sources(*FOLDERS) if not source.path.endswith("/__init__.py")]
    product = [source for source in found if not within(source.module, "verification")]
    lines = {source.module: len(source.text.splitlines()) for source in found}
    yield _table("Files", ("", "files", "lines"), [
        (folder, len(own := [m for m in lines if within(m, folder)]), sum(lines[m] for m in own)) for folder in FOLDERS
    ])  # fmt: skip
    yield _table("Longest files", ("module", "lines"), sorted(lines.items(), key=lambda each: -each[1])[:SHOWN])
    single = {m: users for m, users in importers(product).items() if len(users) == 1}
    yield _table(
        f"Modules of the product with one importer: {len(single)}; the shortest", ("module", "lines", "importer"),
        sorted(((m, lines[m], *users) for m, users in single.items()), key=lambda each: each[1])[:SHOWN],
    )  # fmt: skip
    methods = [name for source in product for name in forwarding(source)]
    by_class = Counter(name.rpartition(".")[0] for name in methods)
    yield _table(f"Methods that only forward: {len(methods)}", ("class", "methods"), by_class.most_common(SHOWN))
    graph, rows = calls(product), []
    for flow, entrance in ENTRANCES.items():
        seen, chain = reached(graph, entrance)
        modules = {next(m for m in lines if within(name, m)) for name in seen}
        rows.append((flow, len(modules), len(seen), len(chain), " > ".join(name.rpartition(".")[2] for name in chain)))
    yield _table("Calls from the entrances", ("flow", "modules", "functions", "chain", "the longest chain"), rows)


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(
            column, justify="right" if number and column.startswith(("li", "fi", "mo", "fu", "ch")) else "left"
        )
    for row in rows:
        table.add_row(*map(str, row))
    return table


if __name__ == "__main__":
    Console().print(*tables(), sep="\n\n")
