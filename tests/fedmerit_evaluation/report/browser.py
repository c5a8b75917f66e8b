"""Headless Chromium for the tests of pages; they are skipped where there is none."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
PRINTED_WIDTH = 703  # CSS pixels of A4 without margins of 12 mm


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A selenium driver of a fresh Chromium that logs its console and its requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("no chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = _chromium()
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=service.Service(driver))
    try:
        yield running
    finally:
        running.quit()


def resize(driver: Any, width: int, *, height: int = 900, mobile: bool = False) -> None:
    """Lay the page out again for a window of that size."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def violations(driver: Any, width: int, scheme: str) -> list[str]:
    """Open all parts of the page, and return what axe-core finds: rules and the elements that break them."""
    axe = pytest.importorskip("axe_core_python", reason="axe-core is not installed")
    resize(driver, width, mobile=width < 640)
    emulate(driver, scheme=scheme)
    driver.refresh()
    driver.execute_script("document.querySelector('[data-open-all]')?.click()")
    source = (Path(axe.__file__).parent / "axe.min.js").read_text()
    driver.execute_cdp_cmd("Runtime.evaluate", {"expression": source})  # as a tool of the browser, not of the page
    driver.set_script_timeout(300)
    found = driver.execute_async_script("axe.run().then(arguments[0])")["violations"]
    return [f"{rule['id']}: {node['html'][:300]}" for rule in found for node in rule["nodes"]]


def emulate(driver: Any, *, media: str = "", scheme: str = "light") -> None:
    """Show the page as on paper (``print``), or in a colour scheme."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def requested(driver: Any) -> set[str]:
    """The addresses that were asked for since the last call, without what the page itself holds."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return {address for address in sent if not address.startswith("data:")}


def pdf(page: Path, folder: Path) -> bytes:
    """The page of a file printed by its own page size, by a Chromium of its own: nothing emulated is left over."""
    browser, paper = _chromium(), folder / "page.pdf"
    print_it = (f"--user-data-dir={folder / 'profile'}", "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    subprocess.run([browser, *FLAGS, *print_it, page.resolve().as_uri()], check=True, capture_output=True, timeout=120)
    return paper.read_bytes()


def _chromium() -> str:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine")
    return browser
