"""A page of the console as a browser reads it, and the rules that hold for every page."""

import re
from html.parser import HTMLParser

_VOID = {"meta", "link", "input", "br", "img", "hr", "line", "rect", "path"}
_LABELLED = {"input", "select", "textarea"}
_LEADS = ("href", "src", "action")
_NOT_ALLOWED = ("style", "iframe", "object", "embed", "base")
_REFERENCES = ("for", "aria-labelledby", "aria-describedby", "list")


class HtmlPage(HTMLParser):
    """Parses a page. `faults` has what is wrong with it; `text` is what a reader sees."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self._ids: set[str] = set()
        self._cell: list[str] | None = None
        self.feed(source)
        self.close()
        if self._open:
            self.faults.append(f"not closed: {self._open}")
        self.text = " ".join("".join(self._text).split())
        self._check(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if len(given) < len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        self.tags.append((tag, given))
        if (name := given.get("id")) is not None:
            if name in self._ids:
                self.faults.append(f"two elements have the id {name}")
            self._ids.add(name)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = []
        if tag == "br":
            self.handle_data(" ")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self._open[-3:]}")
            return
        self._open.pop()
        if tag in ("td", "th") and self._cell is not None:
            self.rows[-1].append(" ".join("".join(self._cell).split()))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self._text.append(data)
            if self._cell is not None:
                self._cell.append(data)

    def of(self, tag: str) -> list[dict[str, str]]:
        """The attributes of all elements of a kind."""
        return [given for name, given in self.tags if name == tag]

    def links(self) -> list[str]:
        """Where the page leads."""
        return [given["href"] for given in self.of("a")]

    def row(self, first: str) -> list[str]:
        """The cells of the row whose first cell has this text."""
        (found,) = [row for row in self.rows if row and row[0] == first]
        return found

    def problem(self) -> str:
        """The sentence of an error page."""
        found = re.search(r"(?s)<p class=\"problem\"[^>]*>(.*?)</p>", self.rawdata_source)
        assert found, self.text
        return HtmlPage.plain(found[1])

    @staticmethod
    def plain(source: str) -> str:
        parser = HTMLParser(convert_charrefs=True)
        words: list[str] = []
        parser.handle_data = words.append  # type: ignore[method-assign]
        parser.feed(source)
        parser.close()
        return " ".join("".join(words).split())

    def _check(self, source: str) -> None:
        self.rawdata_source = source
        labels = {given.get("for") for given in self.of("label")}
        for tag, given in self.tags:
            self.faults += [f"<{tag}> has {name}: nothing may be inline" for name in given if _is_inline(name)]
            self.faults += [f"<{tag} {name}={given[name]}> leads elsewhere" for name in _LEADS if _is_away(given, name)]
            self.faults += [
                f"<{tag} {name}={given[name]}> names no element"
                for name in _REFERENCES
                if name in given and given[name] not in self._ids
            ]
            is_seen = tag in _LABELLED and given.get("type") != "hidden"
            if is_seen and given.get("id") not in labels and "aria-label" not in given:
                self.faults.append(f"<{tag} {given}> has no label")
            if tag in _NOT_ALLOWED or (tag == "script" and not given.get("src")):
                self.faults.append(f"<{tag}> is not allowed")
        once = ["html", "head", "body", "h1", "main"]
        self.faults += [f"there is not one <{tag}>" for tag in once if len(self.of(tag)) != 1]
        if [given.get("lang") for given in self.of("html")] != ["en"] or "<title>" not in source:
            self.faults.append("the page has no language or no title")


def _is_inline(name: str) -> bool:
    return name == "style" or name.startswith("on")


def _is_away(given: dict[str, str], name: str) -> bool:
    value = given.get(name, "/")
    return not value.startswith(("/", "#", "data:,")) or value.startswith("//")
