"""The report in headless Chromium: it renders, sorts, prints, fits a phone, and fetches nothing."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PRINTED_WIDTH, chromium, emulate, pdf, requested, resize
from run_factory import SITES, make_run
from undrawn import PNG

from fedmerit_evaluation.report.report import write_report

pypdf = pytest.importorskip("pypdf")
MEANS = """return [...document.querySelectorAll("#table-comparison tbody tr")].map(
    row => row.cells[arguments[0]].textContent.trim())"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(root / f"{method}-{seed}", method=method, seed=seed, level=level, rounds=5)
        for method, level in (("standalone", 0.7), ("fedavg", 0.78), ("fedce", 0.82))
        for seed in (0, 1)
    ]
    with pytest.MonkeyPatch.context() as patch:  # a page shows the drawings as SVG; PNGs lie beside it
        patch.setattr("fedmerit_evaluation.figures.pages.png", lambda figure: PNG)
        return {"all": write_report(runs), "site": write_report(runs, site=SITES[1])}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(params=["all", "site"])
def page(request: pytest.FixtureRequest, browser: Any, pages: dict[str, Path]) -> Any:
    resize(browser, 1100)
    emulate(browser)
    requested(browser)
    browser.get_log("browser")
    browser.get(pages[request.param].resolve().as_uri())
    return browser


def test_it_renders_without_an_error_and_asks_for_nothing_else(page: Any) -> None:
    assert page.execute_script("return document.querySelectorAll('h2').length") >= 6
    broken = "return [...document.images].filter(image => !image.complete || !image.naturalWidth).length"
    assert page.execute_script("return document.images.length") >= 3
    assert page.execute_script(broken) == 0
    assert requested(page) == {page.current_url}
    assert page.get_log("browser") == []
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_the_policy_stops_what_is_not_the_pages_own(page: Any) -> None:
    page.execute_script("""
        const script = document.createElement("script"); script.textContent = "window.ran = true";
        document.body.append(script);
        const image = document.createElement("img"); image.src = "http://127.0.0.1:9/x.png";
        document.body.append(image);""")
    assert page.execute_script("return window.ran === undefined")
    assert page.execute_script("return [...document.images].at(-1).naturalWidth") == 0
    refused = [entry["message"] for entry in page.get_log("browser")]
    assert refused
    assert all("Content Security Policy" in message for message in refused)


def test_tables_sort_by_click_and_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    browser.get(pages["all"].resolve().as_uri())
    heads = browser.find_elements("css selector", "#table-comparison th")
    column = [head.text for head in heads].index("Mean")
    button = heads[column].find_element("css selector", "button")

    def means() -> list[float]:
        return [float(text.split(" ")[0]) for text in browser.execute_script(MEANS, column)]

    button.click()
    assert means() == sorted(means())
    assert heads[column].get_attribute("aria-sort") == "ascending"
    button.click()
    assert means() == sorted(means(), reverse=True)
    assert heads[column].get_attribute("aria-sort") == "descending"

    browser.execute_script("arguments[0].focus()", button)
    for key in (keys.ENTER, keys.SPACE):
        before = means()
        browser.switch_to.active_element.send_keys(key)
        assert means() == before[::-1]
    heads[0].find_element("css selector", "button").click()
    assert browser.execute_script(MEANS, 0) == ["fedavg", "fedce", "standalone"]
    assert heads[column].get_attribute("aria-sort") is None


def test_a_number_that_is_missing_sorts_last(browser: Any, pages: dict[str, Path]) -> None:
    browser.get(pages["all"].resolve().as_uri())
    heads = browser.find_elements("css selector", "#table-methods th")
    column = next(place for place, head in enumerate(heads) if head.text.startswith("Mean gain"))
    cells = MEANS.replace("comparison", "methods")
    for _ in range(2):
        heads[column].find_element("css selector", "button").click()
        assert browser.execute_script(cells, column)[-1] == "\N{EN DASH}"


def test_a_phone_shows_it_without_scrolling_sideways(page: Any) -> None:
    resize(page, 390, mobile=True)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    widths = page.execute_script("return [...document.images].map(image => image.getBoundingClientRect().width)")
    assert all(300 <= width <= 390 for width in widths)  # figures are made to be read at that width, and do not scroll
    region = page.find_element("css selector", ".scroll[tabindex]")
    assert region.aria_role == "region"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_colour_schemes(page: Any, scheme: str) -> None:
    emulate(page, scheme=scheme)
    colours = page.execute_script("""
        const shown = element => getComputedStyle(element);
        return [".note, h2, li", "td", "thead th", "figure.picture figcaption"].map(name => {
          const element = document.querySelector(name); let below = element;
          while (shown(below).backgroundColor === "rgba(0, 0, 0, 0)") below = below.parentElement;
          return [shown(element).color, shown(below).backgroundColor]; })""")
    page_is_dark = _luminance(page.execute_script("return getComputedStyle(document.body).backgroundColor")) < 0.2
    assert page_is_dark == (scheme == "dark")
    for text, ground in colours:
        light, dark = sorted((_luminance(text), _luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5  # WCAG 2.2, AA


@pytest.mark.slow
def test_it_prints_to_pdf_with_no_table_cut(
    page: Any, pages: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    paper = pypdf.PdfReader(io.BytesIO(pdf(pages[request.node.callspec.params["page"]], tmp_path)))
    texts = [" ".join(sheet.extract_text().split()) for sheet in paper.pages]
    text = " ".join(texts)
    assert 3 <= len(paper.pages) <= 20
    width, height = (float(side) / 72 * 25.4 for side in paper.pages[0].mediabox[2:])
    assert (width, height) == pytest.approx((210, 297), abs=1)
    for heading in page.find_elements("css selector", "h2"):
        assert heading.text in text
    assert "Tables sort by a click" not in text
    assert all(f"{number} / {len(paper.pages)}" in sheet for number, sheet in enumerate(texts, start=1))
    for sheet in texts:
        assert not sheet.endswith(tuple(heading.text for heading in page.find_elements("css selector", "h2")))

    emulate(page, media="print")
    resize(page, PRINTED_WIDTH)
    shown = """return [...document.querySelectorAll("thead th")].map(
        head => [getComputedStyle(head, "::before").content, head.textContent.trim()])"""
    headings = page.execute_script(shown)  # as text: on a page where a table goes on, Chromium leaves buttons out
    assert headings
    assert all(before == f'"{told}"' for before, told in headings)
    cut = """return [...document.querySelectorAll("table")].filter(
        table => table.getBoundingClientRect().right > document.querySelector("main").getBoundingClientRect().right + 1
    ).map(table => table.id)"""
    assert page.execute_script(cut) == []


def _luminance(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``, 0 to 1 (WCAG 2.2)."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
