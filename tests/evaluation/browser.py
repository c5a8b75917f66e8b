"""Headless Chromium for the tests of pages; they are skipped where there is none."""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
PRINTED_WIDTH = 688  # CSS pixels of A4 without margins of 14 mm


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A selenium driver of a fresh Chromium that logs its console and its requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or browser is None:
        pytest.skip("no chromium with chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=service.Service(driver))
    try:
        yield running
    finally:
        running.quit()


def resize(driver: Any, width: int, *, mobile: bool = False) -> None:
    """Lay the page out anew for a window of that width."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def emulate(driver: Any, *, media: str = "", scheme: str = "light") -> None:
    """Show the page as on paper (``print``), or in a colour scheme."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def requested(driver: Any) -> set[str]:
    """The addresses that were asked for since the last call, without what the page itself holds."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return {address for address in sent if not address.startswith("data:")}


def pdf(driver: Any) -> bytes:
    """The page printed, by its own page size."""
    options = {"printBackground": True, "preferCSSPageSize": True}
    return base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", options)["data"])
