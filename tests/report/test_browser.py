"""A report in a real browser: it fetches nothing, logs nothing, fits a phone, and follows the colour scheme."""

import shutil
from pathlib import Path

import pytest
from browser import Page, chromium

from autogp.report import write_report

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium(PROGRAM or "", tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory, digits, passengers, arm, visitors) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    found = {}
    for name, fitted in {"digits": digits, "passengers": passengers, "arm": arm, "visitors": visitors}.items():
        found[name] = folder / f"{name}.html"
        write_report(found[name], fitted.estimator, fitted.X, fitted.y)
    return found


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", ["digits", "passengers", "arm", "visitors"])
def test_a_report_fetches_nothing_logs_nothing_and_fits_its_window(page: Page, files, name, width):
    page.open(files[name], width)
    outside = [url for url in page.requests if not url.startswith("data:")]
    assert outside == [files[name].resolve().as_uri()]
    assert page.problems == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("document.title") != "taken"
    assert page.evaluate("document.querySelector('svg').getBoundingClientRect().width") > min(width, 600) * 0.6


def test_figures_follow_the_colour_scheme(page: Page, files):
    colours = {}
    for dark in (False, True):
        page.open(files["visitors"], 1200, dark)
        colours[dark] = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('svg text')).fill]"
        )
    assert colours[False] == ["rgb(253, 252, 250)", "rgb(91, 98, 109)"]
    assert colours[True] == ["rgb(21, 24, 29)", "rgb(164, 172, 184)"]


def test_the_browser_would_notice_a_fetch_and_an_error(page: Page, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<img src='https://example.invalid/a.png'><script>nothing.here()</script>")
    page.open(path, 800)
    page.evaluate("new Promise(done => setTimeout(done, 200))")
    assert "https://example.invalid/a.png" in page.requests
    assert any("nothing is not defined" in problem for problem in page.problems)
