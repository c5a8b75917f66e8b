"""The report in headless Chromium: it answers, sorts, filters, prints, fits a phone, is accessible, fetches nothing."""

import io
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PRINTED_WIDTH, chromium, emulate, pdf, requested, resize, violations
from run_factory import SITES, make_run
from undrawn import PNG

from fedmerit_evaluation.report.report import write_report

pypdf = pytest.importorskip("pypdf")
MEANS = """return [...document.querySelectorAll("#table-comparison tbody tr")].map(
    row => row.cells[arguments[0]].textContent.trim())"""


class Pages(dict[str, Path]):
    """The report on all hospitals and that for one of them, each written when it is looked at first."""

    def __init__(self, runs: list[Path]):
        self.runs = runs

    def __missing__(self, name: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:  # a page shows the drawings as SVG; PNGs lie beside it
            patch.setattr("fedmerit_evaluation.figures.pages.png", lambda figure: PNG)
            self[name] = write_report(self.runs, site=None if name == "all" else SITES[1])
        return self[name]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    runs = [
        make_run(root / f"{method}-{seed}", method=method, seed=seed, level=level, rounds=5)
        for method, level in (("standalone", 0.7), ("fedavg", 0.78), ("fedce", 0.82))
        for seed in (0, 1)
    ]
    return Pages(runs)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(params=["all", pytest.param("site", marks=pytest.mark.slow)])  # one template
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
    assert page.execute_script(broken) == 0
    assert requested(page) == {page.current_url}
    assert page.get_log("browser") == []
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("width", [1280, 1090, 920, 390])
def test_numbers_of_axes_stand_apart(page: Any, width: int) -> None:
    resize(page, width, mobile=width < 640)
    touching = """return [...document.querySelectorAll(".board svg.strip")].flatMap(axis => {
        const boxes = [...axis.querySelectorAll(":scope > text")].map(text => text.getBoundingClientRect())
            .filter(box => box.width).sort((one, other) => one.x - other.x);
        return boxes.filter((box, i) => i && box.x < boxes[i - 1].right + 3).map(box => Math.round(box.x)); })"""
    assert page.execute_script(touching) == []


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


def test_first_screen_holds_question_answers_and_pictures(browser: Any, pages: dict[str, Path]) -> None:
    resize(browser, 1280, height=800)
    browser.get(pages["all"].resolve().as_uri())
    for name in ("benefit", "contribution", "free-riders", "payment"):
        box = browser.execute_script("return document.getElementById(arguments[0]).getBoundingClientRect()", name)
        assert 0 < box["top"] < box["bottom"] <= 800
        assert browser.find_element("css selector", f"#{name} .badge").is_displayed()
        assert browser.find_element("css selector", f"#{name} .say").text
    assert browser.find_element("css selector", "h1").text == "Four hospitals, prostate: did federated training help?"
    shown = "return document.querySelectorAll(`#${arguments[0]} tbody svg.strip`).length"
    assert browser.execute_script(shown, "contribution") == len(SITES)


def test_first_screen_of_a_phone_holds_all_answers(browser: Any, pages: dict[str, Path]) -> None:
    resize(browser, 390, height=844, mobile=True)
    browser.get(pages["all"].resolve().as_uri())
    answers = browser.find_element("css selector", ".answers")
    assert answers.is_displayed()
    assert answers.rect["y"] + answers.rect["height"] < 844
    assert [one.is_displayed() for one in answers.find_elements("css selector", ".badge")] == [True] * 4
    assert browser.find_element("css selector", "#benefit .say").rect["y"] < 844


def test_tables_sort_by_click_and_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    resize(browser, 1100)
    browser.get(pages["all"].resolve().as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(part => { part.open = true; })")
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


def test_missing_number_sorts_last(browser: Any, pages: dict[str, Path]) -> None:
    browser.get(pages["all"].resolve().as_uri())
    browser.execute_script("""
        const cell = document.querySelector("#table-comparison tbody tr").cells[1];
        cell.dataset.value = "nan"; cell.textContent = "\u2013";
        document.querySelectorAll("details").forEach(part => { part.open = true; })""")
    button = browser.find_elements("css selector", "#table-comparison th button")[1]
    for _ in range(2):
        button.click()
        assert browser.execute_script(MEANS, 1)[-1] == "\N{EN DASH}"


def test_hospitals_sort_open_and_are_filtered(browser: Any, pages: dict[str, Path]) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    resize(browser, 1280)
    browser.get(pages["all"].resolve().as_uri())

    def names() -> list[str]:
        return [one.text for one in browser.find_elements("css selector", ".hospitals .open") if one.is_displayed()]

    heads = browser.find_elements("css selector", ".hospitals th button:not(.open)")
    gains = """return [...document.querySelectorAll(".hospitals .row")].map(
        row => parseFloat(row.cells[4].innerText.replace("\u2212", "-")))"""
    heads[4].click()
    assert browser.execute_script(gains) == sorted(browser.execute_script(gains))
    heads[0].click()
    assert names() == list(SITES)

    first = browser.find_element("css selector", ".hospitals .open")
    panel = browser.find_element("id", first.get_attribute("aria-controls"))
    assert not panel.is_displayed()
    browser.find_element("css selector", ".hospitals .row td").click()
    assert panel.is_displayed()
    assert "Dice by test case" in panel.text
    first.send_keys(keys.ENTER)
    assert not panel.is_displayed()
    first.send_keys(keys.ARROW_DOWN)
    assert browser.switch_to.active_element.text == SITES[1]

    browser.find_element("css selector", f'[data-pick="{SITES[0]}"]').click()
    assert names() == list(SITES[1:])
    assert not browser.find_element("css selector", f'#contribution [data-site="{SITES[0]}"]').is_displayed()


def test_choice_of_method_changes_all_parts(browser: Any, pages: dict[str, Path]) -> None:
    resize(browser, 1280)
    browser.get(pages["all"].resolve().as_uri())
    choices = browser.find_elements("css selector", "#benefit [data-method]")
    assert [one.text for one in choices] == ["fedce", "fedavg"]
    federated = "return document.querySelector('.hospitals .row').cells[3].innerText"
    before = browser.execute_script(federated)
    choices[1].click()
    assert browser.execute_script(federated) != before
    pressed = "return [...document.querySelectorAll('[aria-pressed=true][data-method]')].map(one => one.textContent)"
    assert browser.execute_script(pressed) == ["fedavg", "fedavg"]


def test_marks_say_their_numbers_under_the_pointer(browser: Any, pages: dict[str, Path]) -> None:
    actions = pytest.importorskip("selenium.webdriver.common.action_chains").ActionChains
    resize(browser, 1280)
    browser.get(pages["all"].resolve().as_uri())
    actions(browser).move_to_element(browser.find_element("css selector", "#contribution tbody svg.strip")).perform()
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed()
    assert tip.text.startswith(f"{SITES[0]}: share ")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(1280, "light"), *(pytest.param(*other, marks=pytest.mark.slow) for other in ((1280, "dark"), (390, "light")))],
)
def test_page_has_no_violation_of_accessibility(page: Any, width: int, scheme: str) -> None:
    assert violations(page, width, scheme) == []


def test_phone_shows_it_without_scrolling_sideways(page: Any) -> None:
    resize(page, 390, mobile=True)
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390


def test_page_prints_what_is_read_on_at_most_four_sheets(
    page: Any, pages: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    paper = pypdf.PdfReader(io.BytesIO(pdf(pages[request.node.callspec.params["page"]], tmp_path)))
    texts = [unicodedata.normalize("NFKC", " ".join(sheet.extract_text().split())) for sheet in paper.pages]
    text = " ".join(texts)
    headings = page.find_elements("css selector", ".board h2, section:not(:has(> details)) > h2")
    read = [heading.text for heading in headings]
    assert 1 <= len(paper.pages) <= 4
    width, height = (float(side) / 72 * 25.4 for side in paper.pages[0].mediabox[2:])
    assert (width, height) == pytest.approx((210, 297), abs=1)
    assert all(heading in text for heading in read)
    assert "Clipping and caps" not in text  # folded
    assert all(f"{number} / {len(paper.pages)}" in sheet for number, sheet in enumerate(texts, start=1))
    assert not any(sheet.endswith(tuple(read)) for sheet in texts)


def test_open_parts_are_printed_with_no_table_cut(page: Any) -> None:
    page.find_element("css selector", "[data-open-all]").click()
    emulate(page, media="print")
    resize(page, PRINTED_WIDTH)
    assert page.find_element("id", "settings").is_displayed()
    cut = """return [...document.querySelectorAll("table")].filter(
        table => table.getBoundingClientRect().right > document.querySelector("main").getBoundingClientRect().right + 1
    ).map(table => table.id)"""
    assert page.execute_script(cut) == []
