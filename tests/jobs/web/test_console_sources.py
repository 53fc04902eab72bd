"""What a page names as giving the same: commands that their verbs take, and SQL over views and columns that exist."""

import re
import shlex
from importlib import import_module

import pytest

from lakelog.jobs.launch.launcher import VERBS
from lakelog.jobs.web.page_kit import group_url
from lakelog.schemas.views import VIEWS
from tests.jobs.web.conftest import EVIL_GROUPS, Open
from tests.jobs.web.html_page import HtmlPage
from tests.jobs.web.test_console_pages import PATHS

PATHS_WITH_SEARCH = [
    *PATHS,
    "/topics?search=o'x\\",
    "/topics?search=^o&by=regexp",
    "/topics/flights/messages?partition=1",
    *map(group_url, EVIL_GROUPS),
]


def shown(page: HtmlPage, kind: str) -> list[str]:
    found = re.findall(rf'(?s)<pre tabindex="0" aria-label="{kind}"><code>(.*?)</code></pre>', page.rawdata_source)
    return list(map(HtmlPage.plain, found))


@pytest.mark.parametrize("path", PATHS_WITH_SEARCH)
def test_verbs_take_the_commands_of_a_page(open_page: Open, path: str) -> None:
    for command in shown(open_page(path), "Command"):
        program, verb, *words = shlex.split(command)
        assert program == "lakelog"
        import_module(VERBS[verb].module).make_parser().parse_args(words)


@pytest.mark.parametrize("path", PATHS_WITH_SEARCH)
def test_the_sql_of_a_page_is_over_columns_that_exist(open_page: Open, path: str) -> None:
    page = open_page(path)
    statements = shown(page, "SQL")
    assert statements or shown(page, "Command")
    for statement in (each for each in statements if each.startswith("SELECT")):
        match = re.fullmatch(r"SELECT (.+?) FROM (\w+)(?: WHERE (.+?))?(?: ORDER BY (.+?))?(?: LIMIT \d+)?", statement)
        assert match, statement
        columns, view, where, order = match.groups()
        if view == "records":
            continue
        known = {column.name for column in VIEWS[view.removeprefix("then_")].columns}
        named = [*re.findall(r"(\w+)(?= =| RLIKE)", where or ""), *re.findall(r"lower\((\w+)\)", where or "")]
        named += [word.removesuffix(" DESC") for word in (order or "").split(", ") if word]
        named += [] if columns == "*" else columns.split(", ")
        named += [where] if where and where.isidentifier() else []
        assert set(named) <= known, statement
