"""The admin in a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

INSTALL_CHROMIUM = "apt-get install chromium"

# Without Playwright these tests are not collected: it is an extra of its own, `pip install -e ".[browser]"`.
collect_ignore_glob = [] if find_spec("playwright") and find_spec("axe_playwright_python") else ["test_*.py"]

# Playwright's blocking interface runs an event loop in this thread, which Django takes for asynchronous code.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(
    `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="a directory for pictures of every page, see docs/screenshots.py")


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """Where pictures are kept of what a test looks at; None where nobody wants any."""
    directory: Path | None = request.config.getoption("--pictures", None)
    return directory


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not path:
        pytest.fail(f"There is no chromium on PATH. Install it: {INSTALL_CHROMIUM}; or name one in CHROMIUM.")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any, live_server: Any, transactional_db: None) -> Iterator[Any]:
    """``open_page(client, path, **options)`` opens a page as the user of this test client.

    A violation of the content security policy, or an error in a script, fails the test.
    """
    contexts = []

    def opened(client: Any, path: str, **options: Any) -> Any:
        context = chromium.new_context(base_url=live_server.url, **options)
        contexts.append(context)
        context.set_default_timeout(15_000)
        context.add_init_script(WATCH_POLICY)
        context.add_cookies(
            [{"name": name, "value": cookie.value, "url": live_server.url} for name, cookie in client.cookies.items()]
        )
        page = context.new_page()
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        for page in context.pages:
            violations = page.evaluate("window.violations || []")
            errors = getattr(page, "errors", [])
        context.close()
        assert not violations, violations
        assert not errors, errors
