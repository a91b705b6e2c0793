"""The page in a real browser: rows, sorting, filters, an opened row, pictures, both colour schemes, no network, no error."""

import base64
import json
import shutil

import numpy as np
import pytest

from neurips26.shared import pages, report
from neurips26.shared.testing import needs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


def claim(id, effect, verdict, **changes):
    values = [effect * v if effect else 1.0 for v in (0.98, 1.0, 1.02, 0.99, 1.01)]
    row = {
        "id": id,
        "statement": f"Statement of {id}",
        "paper_value": "2x (H100)",
        "scope": "scaled down",
        "data": [{"name": "photographs", "kind": "from a dependency"}],
        "metric": "CPU seconds",
        "unit": "s",
        "direction": "lower",
        "criterion": {"kind": "ratio", "at_most": 0.75},
        "ours": {"setting": {"tile": 256}, "values": values},
        "baselines": {"lloyd": {"setting": {}, "values": [1.0] * 5}},
        "compared_to": "lloyd",
        "seeds": [1, 2, 3, 4, 5],
        "cells": [{"factors": {"n": n}, "seed": 1, "method": "ours", "value": n * 0.1} for n in (1, 2, 4)],
        "interval": [effect * 0.95, effect * 1.05] if effect else None,
        "effect": effect,
        "verdict": verdict,
        "reason": "" if verdict == "holds" else "the reason given",
        "figures": [],
        "seconds": 1.5,
        "tuned_by": None,
        "notes": [],
        "stale": False,
    }
    return row | changes


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with every state on it, one picture, and a paper that failed."""
    from matplotlib.image import imsave

    folder = tmp_path_factory.mktemp("page")
    imsave(folder / "map.png", np.random.default_rng(0).random((40, 60, 3)))
    base = {
        "schema": 1,
        "tier": "cpu",
        "revision": "0123456789abcdef",
        "dirty": False,
        "created": "2026-01-01T00:00:00+00:00",
        "provenance": "code",
        "machine": {"cpu": "A CPU", "cores": 2, "memory_gib": 24, "gpu": None},
        "versions": {"python": "3.11.7"},
        "figures_dir": str(folder),
    }
    records = [
        base
        | {
            "paper": "alpha",
            "claims": [
                claim("fast", 0.5, "holds", figures=["map.png"]),
                claim("slow", 0.9, "does not hold"),
                claim("gpu", None, "not testable here", reason="no GPU", ours=None, baselines={}, compared_to=None),
            ],
        },
        base | {"paper": "beta", "claims": [claim("maybe", 0.74, "undecided"), claim("old", 0.2, "holds", stale=True)]},
    ]
    papers = [
        {"slug": "alpha", "title": "Paper Alpha", "summary": "first"},
        {"slug": "gamma", "title": "Paper Gamma", "error": "uv sync: the network is gone"},
    ]
    return report.build_page(records, folder / "index.html", papers=papers)


def start(scheme="light"):
    needs("browser", bool(CHROMIUM and DRIVER), "chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # Root needs --no-sandbox; every name resolves to nothing, so that a request to the network would be an error.
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(flag)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    return driver


@pytest.fixture(scope="module")
def driver():
    driver = start()
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver, page):
    driver.get("about:blank")
    driver.get(page.as_uri())
    yield driver
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    loads = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loads if not name.startswith("data:")] == []


def all_of(browser, css):
    return browser.find_elements("css selector", css)


def one(browser, css):
    (element,) = all_of(browser, css)
    return element


def order(browser):
    return [e.get_attribute("id").removeprefix("claim-") for e in all_of(browser, "tbody.claim")]


def click(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def test_tally_and_rows(browser):
    assert one(browser, "#tally").text == "1 holds, 1 does not, 2 undecided or untested here, 1 stale"
    assert order(browser) == ["alpha-fast", "alpha-slow", "alpha-gpu", "beta-maybe", "beta-old"]
    assert all(row.is_displayed() for row in all_of(browser, "tr.row"))
    assert not any(more.is_displayed() for more in all_of(browser, "tr.more"))
    assert "does not hold, scaled down" in one(browser, "#claim-alpha-slow td.verdict").text
    assert "not testable here: no GPU" in one(browser, "#claim-alpha-gpu td.verdict").text


def test_failures_are_as_visible_as_successes(browser):
    sizes = {e.get_attribute("data-state"): e.size["height"] for e in all_of(browser, "button.filter")}
    assert sizes["fails"] == sizes["holds"]
    failed = one(browser, "section.failed")
    assert failed.is_displayed()
    assert "the network is gone" in failed.text


def test_sorting_by_effect_and_back(browser):
    header = one(browser, "th[data-key=effect]")
    click(browser, header.find_element("css selector", "button"))
    assert order(browser) == ["beta-old", "alpha-fast", "beta-maybe", "alpha-slow", "alpha-gpu"]
    assert header.get_attribute("aria-sort") == "ascending"
    click(browser, header.find_element("css selector", "button"))
    # What was not measured stays last in both directions.
    assert order(browser) == ["alpha-slow", "beta-maybe", "alpha-fast", "beta-old", "alpha-gpu"]
    click(browser, one(browser, "th[data-key=verdict] button"))
    assert order(browser)[0] == "alpha-fast"
    assert header.get_attribute("aria-sort") is None


def test_opening_a_row_shows_how_it_was_made(browser):
    button = one(browser, "#claim-alpha-fast button.open")
    click(browser, button)
    more = one(browser, "#claim-alpha-fast-more")
    assert more.is_displayed()
    assert button.get_attribute("aria-expanded") == "true"
    for text in ("0.75", "neurips26 record alpha --tier cpu", "0123456789ab", '{"tile": 256}', "photographs"):
        assert text in more.text
    assert len(more.find_elements("css selector", "svg.strip circle.seed")) == 10
    assert len(more.find_elements("css selector", "svg.curves polyline")) == 1
    picture = more.find_element("css selector", ".borrow img")
    assert browser.execute_script("return arguments[0].naturalWidth", picture) == 60
    click(browser, button)
    assert not more.is_displayed()


def test_reason_of_a_failure_is_told(browser):
    click(browser, one(browser, "#claim-alpha-slow button.open"))
    assert "the reason given" in one(browser, "#claim-alpha-slow-more").text


def test_address_of_a_claim_opens_it(browser, page):
    browser.get("about:blank")
    browser.get(page.as_uri() + "#claim-beta-maybe")
    assert one(browser, "#claim-beta-maybe-more").is_displayed()


def test_filters_and_search(browser):
    click(browser, one(browser, "button.filter[data-state=fails]"))
    assert [e.get_attribute("id") for e in all_of(browser, "tbody.claim") if e.is_displayed()] == ["claim-alpha-slow"]
    click(browser, one(browser, "button.filter[data-state=fails]"))
    field = one(browser, "#find")
    field.send_keys("beta")
    assert len([e for e in all_of(browser, "tbody.claim") if e.is_displayed()]) == 2
    field.send_keys(" nothing like it")
    assert one(browser, "#none").is_displayed()


def test_keyboard_opens_a_row(browser):
    from selenium.webdriver.common.keys import Keys

    one(browser, "#claim-beta-old button.open").send_keys(Keys.ENTER)
    assert one(browser, "#claim-beta-old-more").is_displayed()


def test_pictures_are_embedded_and_enlarge(browser):
    (image,) = all_of(browser, ".gallery img")
    assert image.get_attribute("src").startswith("data:image/png;base64,")
    assert browser.execute_script("return arguments[0].complete && arguments[0].naturalWidth", image) == 60
    click(browser, one(browser, ".zoom"))
    assert one(browser, "dialog img").is_displayed()
    one(browser, "dialog button").click()
    assert not one(browser, "dialog").is_displayed()


def test_both_colour_schemes_are_readable(page, driver):
    for scheme in ("light", "dark"):
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        driver.get("about:blank")
        driver.get(page.as_uri())
        style = "const s = getComputedStyle(arguments[0]); return JSON.stringify([s.color, s.backgroundColor])"
        ink, paper = json.loads(driver.execute_script(style, one(driver, "body")))
        assert contrast(ink, paper) > 12
        for state in ("holds", "fails", "undecided", "untested", "stale"):
            colour = json.loads(driver.execute_script(style, all_of(driver, f".chip.{state}")[0]))[0]
            assert contrast(colour, paper) >= 4.5, (scheme, state)


def contrast(a, b):
    """Contrast ratio of two ``rgb(…)`` colours as WCAG 2 defines it."""

    def luminance(text):
        channels = np.array([int(v) for v in text[text.index("(") + 1 : -1].split(",")[:3]]) / 255
        linear = np.where(channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_narrow_screen_does_not_scroll_sideways(browser):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        widths = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert widths[0] <= widths[1]


def test_page_of_the_committed_records_opens(root, driver, tmp_path):
    page = tmp_path / "index.html"
    pages.write_page([root / "results"], page, {})
    driver.get_log("browser")
    driver.get(page.as_uri())
    records = pages.load_records([root / "results"])
    assert len(all_of(driver, "tbody.claim")) == len(report.rows(records))
    script = "return [...document.images].filter(i => i.src && !(i.complete && i.naturalWidth)).length"
    assert driver.execute_script(script) == 0
    assert [e for e in driver.get_log("browser") if e["level"] == "SEVERE"] == []


def test_screenshot_is_not_blank(browser):
    from io import BytesIO

    from matplotlib.image import imread

    png = base64.b64decode(browser.get_screenshot_as_base64())
    assert imread(BytesIO(png)).std() > 0.02
