"""The documentation as a site, in headless Chromium: every page at two widths, light and dark, and what is copied.

It needs Chromium and `pip install 'lakelog[browser]'`.
"""

import functools
import http.server
import os
import subprocess
import sys
import threading

import pytest

from tests.long.chromium import chromium
from tests.pages import HOUSE, commands

WAIT_MS = 30_000
COLUMNS = 120  # of code that must not scroll in a window of 1280 pixels

# Of each block: the most columns of a line, whether it scrolls, and whether the page lets it.
BLOCKS = """
[...document.querySelectorAll('pre > code')].map(code => [
    Math.max(...code.innerText.split('\\n').map(line => [...line].length)),
    code.scrollWidth > code.clientWidth,
    ['auto', 'scroll'].includes(getComputedStyle(code).overflowX),
])
"""
WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site, built and served."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=HOUSE, env=environment, check=True, timeout=300)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield (
        f"http://127.0.0.1:{server.server_port}",
        sorted(f"/{page.relative_to(folder).parent}/".replace("/./", "/") for page in folder.rglob("index.html")),
    )
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def tab(browser, site):
    """Opens tabs that note errors, and requests to other hosts."""
    contexts, noted = [], []

    def opened(width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=site[0])
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: noted.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: noted.append(str(error)))
        page.on("request", lambda sent: None if sent.url.startswith((site[0], "data:")) else noted.append(sent.url))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert noted == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_and_its_code_has_room(tab, site, width, scheme):
    page, faults = tab(width, scheme), []
    url, paths = site
    assert len(paths) > 25
    for path in paths:
        page.goto(url + path)
        widths = page.evaluate(WIDTHS)
        faults += [(path, f"is {widths[0]} wide in a window of {widths[1]}")] if widths[0] > widths[1] else []
        for columns, scrolls, may_scroll in page.evaluate(BLOCKS):
            if scrolls and not may_scroll:
                faults.append((path, f"a block of {columns} columns ends at its edge"))
            if width == 1280 and scrolls and columns <= COLUMNS:
                faults.append((path, f"a block of {columns} columns scrolls"))
    assert faults == []


def test_the_button_of_a_block_copies_the_commands_without_prompt_and_output(tab, site):
    page = tab()
    url, _ = site
    for name, path in (("python-clients.md", "/python-clients/"), ("operations.md", "/operations/")):
        page.goto(url + path)
        blocks, copied = page.locator(".language-console"), []
        for number in range(blocks.count()):
            page.evaluate("navigator.clipboard.writeText('')")
            blocks.nth(number).scroll_into_view_if_needed()  # the theme adds the button once it is seen
            blocks.nth(number).get_by_title("Copy to clipboard").click()
            page.wait_for_function("navigator.clipboard.readText().then(text => text !== '')")
            copied.append(page.evaluate("navigator.clipboard.readText()"))
        text = "\n".join(copied)
        assert text.replace("\\\n", " ").splitlines() == [
            line for command in commands(name) for line in command.splitlines()
        ]
        assert "Processed a total" not in text


def test_the_site_is_dark_where_the_system_is_and_where_the_reader_wants_it(tab, site):
    def brightness(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")

    url, _ = site
    light, dark = tab(scheme="light"), tab(scheme="dark")
    for page in (light, dark):
        page.goto(url)
    assert brightness(light) > 200 > 60 > brightness(dark)
    for _ in range(2):  # to light, then to dark
        light.locator("form[data-md-component=palette] label:not([hidden])").click()
    assert brightness(light) < 60
    light.goto(f"{url}/concepts/")
    assert brightness(light) < 60, "it is kept"


def test_the_landing_page_shows_the_failover_and_leads_to_everything(tab, site):
    page = tab()
    url, _ = site
    page.goto(url)
    picture = page.locator("img[src$='failover.svg']")
    assert picture.evaluate("each => each.complete && each.naturalWidth > 0")
    assert "acknowledged again after" in picture.get_attribute("alt")
    links = page.eval_on_selector_all(".grid a", "all => all.map(each => new URL(each.href).pathname)")
    for path in (
        "/start/",
        "/failures/",
        "/dataframes/",
        "/serializers/",
        "/disaster/",
        "/operations/",
        "/benchmarks/",
    ):
        assert path in links
    assert "0.1.0" in page.locator("footer").inner_text()
