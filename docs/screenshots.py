"""Makes the screenshots of README and docs from the demo's data.

    python -m pip install -e ".[browser]" && python docs/screenshots.py

With a directory it makes pictures of every page there instead, in each way in which somebody may look at it: widths
from 390 to 1920 pixels, zoomed, dark, in forced colors, from right to left, on paper, without JavaScript. Look at them
after a change of the pages.

    python docs/screenshots.py /tmp/pictures

It needs a Chromium: ``apt-get install chromium``, or name one in the environment variable CHROMIUM.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PORT = 8766
SITE = f"http://127.0.0.1:{PORT}"
QUEUES = f"{SITE}/admin/tenant_slots/tenantqueue/"
WAIT_FOR_FIGURES = 3000
"""Milliseconds in which the running shops fill the lists."""
WAIT_FOR_WORK = 120_000
"""Milliseconds, more than a round of the demo takes."""


@contextmanager
def demo() -> Iterator[str]:
    """The demo with its web server; gives the password of its users."""
    command = [sys.executable, "manage.py", "demo", "--imports", "120", "--serve", "--port", str(PORT)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield _password(process)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def _password(process: subprocess.Popen[str]) -> str:
    for line in process.stdout or ():
        if found := re.search(r"password of each is (\S+)", line):
            return found[1]
    raise SystemExit("The demo ended before it served its pages.")


def chromium() -> str:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not found:
        raise SystemExit("There is no Chromium. Run: apt-get install chromium")
    return found


def take(page: Page, password: str) -> None:
    page.goto(f"{SITE}/admin/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", password)
    page.click("input[type=submit]")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        _shoot(page, QUEUES, f"queues-{scheme}")
    page.emulate_media(color_scheme="light")
    page.goto(QUEUES)
    page.get_by_role("link", name="demo-megamart").first.click()
    _shoot(page, page.url, "queue")
    _shoot(page, f"{SITE}/admin/tenant_slots/tenantjob/", "jobs")


def _shoot(page: Page, address: str, name: str) -> None:
    """While the big shop waits: between two rounds of the demo all shops are idle."""
    page.goto(QUEUES)
    page.wait_for_selector('[data-state="at_limit"], [data-state="waits_for_worker"]', timeout=WAIT_FOR_WORK)
    page.goto(address)
    page.wait_for_timeout(WAIT_FOR_FIGURES)
    page.screenshot(path=IMAGES / f"{name}.png")


def picture_every_page(directory: str) -> int:
    """By the tests that look at the same pages. Returns their exit code: the pictures are made where they fail, too."""
    looks = ["tests/browser/test_every_page.py", "-k", "every_page_can_be_read"]
    command = [sys.executable, "-m", "pytest", "-q", *looks, "--pictures", str(Path(directory).resolve())]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def picture_the_manual() -> None:
    IMAGES.mkdir(exist_ok=True)
    with demo() as password, sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium(), args=flags)
        take(browser.new_page(viewport={"width": 1500, "height": 800}), password)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(picture_every_page(sys.argv[1]))
    picture_the_manual()
