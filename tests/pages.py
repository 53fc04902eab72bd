"""The README and the pages of `docs/`, and the code that they show."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

HOUSE = Path(__file__).resolve().parent.parent
PAGES = {page.name: page for page in (HOUSE / "README.md", *sorted((HOUSE / "docs").glob("*.md")))}


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """The blocks of these languages with the text that follows each, up to the next one."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$(.*?)(?=^```[a-z]|\Z)", PAGES[page].read_text("utf-8"), re.M | re.S)
    return [(text, after) for language, text, after in found if language in languages]


def commands(page: str) -> Iterator[str]:
    """The commands of a page; those of several lines are joined to one."""
    for text, _ in blocks(page, "console"):
        for line in re.findall(r"^\$ (.*?[^\\|])$", text, re.M | re.S):
            yield line.replace("\\\n", " ")


def docs_module(name: str) -> ModuleType:
    """A module of `docs/`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, HOUSE / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
