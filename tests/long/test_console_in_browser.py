"""The console in headless Chromium: every page at two widths, light and dark, by axe's rules, by keyboard, and live.

It needs Chromium and `pip install 'lakelog[browser]'`.
"""

import shutil
import threading

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe

from lakelog.jobs.cli.options import Invocation
from lakelog.jobs.web.change_desk import ChangeDesk
from lakelog.jobs.web.change_pages import ChangePages
from lakelog.jobs.web.changes import CHANGES
from lakelog.jobs.web.page_kit import Console, group_url
from lakelog.jobs.web.shared_readings import ConsoleReadings
from lakelog.jobs.web.sign_in import SignIn, Token
from lakelog.jobs.web.verb_answers import VerbRunner
from lakelog.jobs.web.web_app import web_app
from tests.jobs.metrics.scraped import LONG, beat, fall_silent
from tests.jobs.web.conftest import EVIL, furnished
from tests.long.chromium import chromium
from tests.processes import wait_until
from tests.storage.logs import P0

PATHS = [
    "/", "/brokers", "/brokers/1", "/topics", "/topics?search=fl", "/topics/flights", "/topics/flights/messages",
    "/topics/flights/messages?partition=0&text=plain", "/topics/flights/consumers", "/topics/flights/settings",
    "/topics/flights/history", "/groups", "/groups/billing", group_url(EVIL), "/reassignments", "/what-if",
    "/what-if?kill=1", "/events", "/history", "/nothing", "/topics?page=x",
]  # fmt: skip
AXE_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"], "resultTypes": ["violations"]}
WAIT_MS = 30_000
TOKEN = "0123456789abcdef" * 4


class Served:
    """A console of a world's cluster, in this process, which allows changes if that is asked for."""

    def __init__(self, folder, allow_changes=False):
        self.world = furnished(folder)
        self.world.change(P0, isr=(1,), partition_epoch=1)
        self.world.change(P0, isr=(1, 2), partition_epoch=2)
        readings = ConsoleReadings(self.world.uri, LONG, 0.2, 60.0)
        invocation, changes = Invocation("lakelog", self.world.uri), None
        if allow_changes:
            desk = ChangeDesk(readings, invocation, VerbRunner(self.world.uri))
            changes = ChangePages(desk, SignIn(Token(TOKEN), dict))
        app = web_app(Console(readings, invocation), {"127.0.0.1"}, changes)
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self):
        self._thread.start()
        wait_until(lambda: self._server.started, "the server has started")
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._server.should_exit = True
        self._thread.join(30)


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Served(str(tmp_path_factory.mktemp("console"))) as found:
        yield found


@pytest.fixture(scope="module")
def changing(tmp_path_factory):
    """A console that allows changes."""
    with Served(str(tmp_path_factory.mktemp("changing")), allow_changes=True) as found:
        yield found


@pytest.fixture
def watched(browser, served):
    """Opens tabs that note what a console or another host has to do with a page."""
    contexts, noted = [], []

    def tab(width=1280, scheme="light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: noted.append((message.type, message.text)))
        page.on("pageerror", lambda error: noted.append(("error", str(error))))
        page.on("request", lambda sent: noted.append(sent.url) if not sent.url.startswith(served.url) else None)
        return page

    yield tab, noted
    for context in contexts:
        context.close()


def faults_of(page):
    """What a page breaks: it is too wide, or has a violation of axe's rules."""
    found = []
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    if widths[0] > widths[1]:
        found.append((page.url, f"is {widths[0]} wide in a window of {widths[1]}"))
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    broken = Axe().run(page, options=AXE_RULES).response["violations"]
    return found + [(page.url, each["id"], [node["html"][:200] for node in each["nodes"][:2]]) for each in broken]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_and_is_accessible(served, watched, width, scheme):
    tab, noted = watched
    page, faults = tab(width, scheme), []
    for path in PATHS:
        page.goto(served.url + path)
        faults += faults_of(page)
    errors_of_status = [each for each in noted if "Failed to load resource" not in str(each) and "data:," not in each]
    assert (faults, errors_of_status) == ([], [])


def test_the_keyboard_reaches_every_link(served, watched):
    tab, _ = watched
    page = tab()
    for path in ("/", "/topics/flights/messages", "/history"):
        page.goto(served.url + path)
        wanted = page.evaluate("[...document.querySelectorAll('a')].filter(e => e.offsetParent).map(e => e.href)")
        seen, first = [], None
        page.keyboard.press("Tab")
        first = page.evaluate("document.activeElement.textContent.trim()")
        for _ in range(600):
            seen.append(page.evaluate("document.activeElement.href ?? ''"))
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement === document.body"):
                break
        assert first == "Skip to the content"
        assert set(wanted) <= set(seen)


def test_without_javascript_every_page_is_whole(served, watched):
    tab, _ = watched
    page = tab(java_script_enabled=False)
    page.goto(served.url)
    assert not page.locator("#live").is_visible()
    page.get_by_role("link", name="Topics", exact=True).click()
    page.get_by_label("Name").fill("fli")
    page.get_by_role("button", name="Search").click()
    assert page.get_by_role("link", name="flights").count() == 1
    page.goto(f"{served.url}/what-if")
    page.locator("#kill-1").check()
    page.get_by_role("button", name="Predict").click()
    assert "with a new leader" in page.locator("main").inner_text()


def test_a_page_follows_the_cluster_and_keeps_what_a_reader_does(served, watched):
    tab, noted = watched
    page = tab()
    page.goto(f"{served.url}/brokers")
    page.select_option("#rate", "2")
    page.locator("#source summary").click()
    page.get_by_role("link", name="2", exact=True).focus()
    fall_silent(served.world, "brokers/2")
    page.get_by_text("dead").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "2", "the focus is where it was"
    assert page.locator("#source").get_attribute("open") is not None
    beat(served.world, 2)
    page.get_by_text("dead").wait_for(state="detached")
    page.reload()
    assert page.locator("#rate").input_value() == "2", "the rate is kept"
    assert noted == []


def test_a_form_that_somebody_fills_in_is_left_alone(served, watched):
    tab, _ = watched
    page = tab()
    page.goto(f"{served.url}/topics")
    page.select_option("#rate", "2")
    page.get_by_label("Name").fill("half a na")
    before = page.locator(".asof time").get_attribute("datetime")
    beat(served.world, 1)
    asked = []
    page.on("request", lambda sent: asked.append(sent.url))
    page.wait_for_timeout(5_000)
    assert page.get_by_label("Name").input_value() == "half a na"
    assert (page.locator(".asof time").get_attribute("datetime"), asked) == (before, [])


def test_nothing_in_a_record_runs(served, watched):
    tab, _ = watched
    page, opened = tab(), []
    page.on("dialog", lambda dialog: opened.append(dialog.message))
    for path in ("/topics/flights/messages?limit=500", "/groups", group_url(EVIL)):
        page.goto(served.url + path)
        assert EVIL in page.locator("main").text_content()
        assert page.locator("main script, main img").count() == 0
    assert opened == []


def test_a_page_stays_when_the_cluster_and_then_the_console_go_away(tmp_path, browser):
    with Served(str(tmp_path)) as served:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(f"{served.url}/topics")
        page.select_option("#rate", "2")
        shutil.move(served.world.uri, f"{served.world.uri}-away")
        page.get_by_text("Status 503.").wait_for()
        assert page.get_by_role("link", name="flights").is_visible(), "the last page is still there"
        shutil.move(f"{served.world.uri}-away", served.world.uri)
        page.locator("#live-problem").wait_for(state="hidden")
        served.stop()
        page.get_by_text("The console does not answer.").wait_for()
        assert page.get_by_role("link", name="flights").is_visible()
        page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (1280, "dark"), (390, "light")])
def test_a_change_from_the_sign_in_to_its_outcome(changing, browser, width, scheme):
    """Every page of it, by axe's rules. Chromium sends the headers that the console asks for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, noted = context.new_page(), []
    page.set_default_timeout(WAIT_MS)
    page.on("console", lambda message: noted.append(message.text) if message.type == "error" else None)
    page.goto(f"{changing.url}{group_url('billing')}")
    page.get_by_role("link", name="Reset its offsets").click()
    faults = faults_of(page)
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    assert "The token is wrong" in page.get_by_role("alert").first.inner_text()
    faults += faults_of(page)
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    assert page.get_by_label("Group").input_value() == "billing"
    page.get_by_label("Set them").select_option("to-offset")
    page.get_by_label("Value").fill(EVIL)
    page.get_by_role("button", name="Show what would happen").click()
    assert repr(EVIL) in page.locator("main .problem").inner_text()
    assert page.get_by_label("Value").input_value() == EVIL, "the form is kept"
    faults += faults_of(page)
    page.get_by_label("Value").fill("2")
    page.get_by_role("button", name="Show what would happen").click()
    assert "NEW-OFFSET" in page.locator("main").inner_text()
    faults += faults_of(page)
    page.get_by_role("button", name="Reset the offsets").click()
    page.get_by_text("Done.").wait_for()
    faults += faults_of(page)
    page.reload()
    page.get_by_text("Done.").wait_for()
    for path in ("/topics", "/topics/flights", "/topics/flights/settings", "/brokers", "/brokers/1", "/sign-in"):
        page.goto(changing.url + path)
        faults += faults_of(page)
    for change in CHANGES.values():
        page.goto(changing.url + change.path)
        faults += faults_of(page)
    page.get_by_role("button", name="Sign out").click()
    assert page.get_by_role("link", name="Sign in").is_visible()
    context.close()
    assert (faults, [each for each in noted if "Failed to load resource" not in each]) == ([], [])


def test_a_group_is_deleted_by_keyboard_and_without_javascript(changing, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{changing.url}/change/delete-group?group=100%25")
    for words in (TOKEN, None, "100%"):
        page.locator("main input:not([type=hidden])").first.focus()
        if words is not None:
            page.keyboard.type(words)
        page.keyboard.press("Enter")
        page.wait_for_load_state()
    page.get_by_text("Done.").wait_for()
    page.goto(f"{changing.url}/groups")
    assert page.get_by_role("link", name="100%").count() == 0
    context.close()


def test_a_form_that_was_refused_is_not_asked_for_again(changing, browser):
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{changing.url}/change/create-topic")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Topic").fill("t")
    page.get_by_label("Partitions").fill("many")
    page.get_by_role("button", name="Show what would happen").click()
    page.select_option("#rate", "2")
    asked = []
    page.on("request", lambda sent: asked.append(sent.url))
    page.wait_for_timeout(5_000)
    assert (page.get_by_label("Partitions").input_value(), asked) == ("many", [])
    page.close()


@pytest.mark.parametrize("origin", ["http://localhost:{port}", "data:"])
def test_a_page_of_another_site_cannot_send_a_form(changing, browser, origin):
    """A page elsewhere that posts to the console: the browser itself tells where it comes from."""
    port = changing.url.rpartition(":")[2]
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    form = f'<form method="post" action="{changing.url}/sign-in"><input name="token" value="{TOKEN}"></form>'
    if origin == "data:":
        page.goto(f"data:text/html,{form}")
    else:
        page.route("**/elsewhere", lambda route: route.fulfill(content_type="text/html", body=form))
        page.goto(f"{origin.format(port=port)}/elsewhere")
    with page.expect_navigation():
        page.evaluate("document.forms[0].submit()")
    assert "this console takes forms of" in page.locator("main .problem").inner_text()
    page.close()
