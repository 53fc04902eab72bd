"""Headless Chromium, for tests of pages. It needs `pip install 'lakelog[browser]'`."""

import shutil
from contextlib import contextmanager

from playwright.sync_api import sync_playwright

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def chromium():
    """A browser during the block."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "this test needs Chromium, and there is no chromium, chromium-browser or google-chrome on the PATH"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()
