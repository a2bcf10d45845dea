"""A headless Chromium, driven by selenium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def missing() -> str:
    """What a browser test lacks here; empty where it can run."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: pip install selenium"
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        return "there is no Chromium here: apt-get install chromium chromium-driver"
    return (
        ""
        if shutil.which("chromedriver")
        else "there is no chromedriver here: apt-get install chromium-driver"
    )


@contextmanager
def browser(width: int = 1360, height: int = 900) -> Iterator[Any]:
    """A browser whose pages may load nothing from a network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in (*FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.set_script_timeout(120)
        yield driver
    finally:
        driver.quit()


def ready(driver: Any, after: int = 0) -> int:
    """Wait until the page has shown more than `after` places; returns how many it has shown."""
    from selenium.webdriver.support.ui import WebDriverWait

    count = "return Number(document.documentElement.dataset.ready ?? 0)"
    WebDriverWait(driver, 120).until(lambda d: d.execute_script(count) > after)
    return int(driver.execute_script(count))
