"""The page in a browser: drawn, complete, quiet, and no wider than the screen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sft.report import write_report
from tests.sft.report.synthetic import PACKERS, Synthetic, compare_sweep, write_run

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium on the PATH: apt-get install -y chromium"
)

QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
PLOTS = {
    "speed-plot", "fill-plot", "segments-plot", "lengths-plot", "apart-real_tokens",
    *(f"{k}-{a}" for k in ("val", "train") for a in ("real_tokens", "wall_seconds", "steps")),
}  # fmt: skip
CHOICES = {f"{mode} + {packer}" for mode in ("trainer", "loader") for packer in PACKERS} | {
    "none (micro-batch 1)",
    "none (micro-batch 4)",
}
FAILED = "packer=ffs,packing=loader,seed=3"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 54 runs, of which one failed."""
    directory = tmp_path_factory.mktemp("sweep") / "compare"
    return write_report([compare_sweep(directory, failed={FAILED: "no <b>luck"})], directory)


class Page:
    """A page, with what it asked for and complained of."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str = "light") -> None:
        size = {"width": width, "height": 900}
        self.page = browser.new_page(viewport=size, color_scheme=scheme)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]

    def traces(self, selector: str) -> dict[str, int]:
        """By plot, how many drawn things it holds."""
        count = f"e => [e.id, e.querySelectorAll({selector!r}).length]"
        script = f"els => Object.fromEntries(els.map({count}))"
        found: dict[str, int] = self.page.eval_on_selector_all(".plot", script)
        return found


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_page_is_whole(browser: Any, report: Path, width: int, scheme: str) -> None:
    page = Page(browser, report, width, scheme)
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("data:")] == [page.url]
    for table in ("speed", "packing", "learning"):
        names = {
            re.sub(r"\s+", " ", t) for t in page.texts(f"#{table} tbody th > span:first-of-type")
        }
        assert names == CHOICES
    drawn = page.traces("svg .trace")
    assert set(drawn) == PLOTS
    # Curves: a band and a line per choice; marks: at least one per choice; one histogram.
    for name, count in drawn.items():
        assert count >= (1 if name == "lengths-plot" else len(CHOICES)), name
    assert page.page.evaluate("document.documentElement.scrollWidth") == width
    boxes = page.page.eval_on_selector_all(
        ".plot .main-svg", "els => els.map(e => e.getBoundingClientRect().right)"
    )
    assert boxes and max(boxes) <= width
    page.page.close()


def test_the_page_is_ordered_and_says_what_failed(browser: Any, report: Path) -> None:
    page = Page(browser, report, 1280)
    assert page.texts("h2") == [
        "The numbers", "Curves", "Rows and lengths", "What was dropped", "Failed or missing",
        "How the configurations differ", "On what, and how to repeat it",
    ]  # fmt: skip
    answer, fairness = (page.page.locator(s).bounding_box()["y"] for s in ("#answer", "#fairness"))
    assert answer < fairness < page.page.locator("h2").first.bounding_box()["y"]
    assert page.texts("#failed li") == [f"{FAILED}: no <b>luck"]
    assert page.page.locator("#failed a").get_attribute("href") == (
        "packer%3Dffs%2Cpacking%3Dloader%2Cseed%3D3"
    )
    page.page.close()


def test_the_tables_need_no_scrolling_on_a_desktop(browser: Any, report: Path) -> None:
    page = Page(browser, report, 1280)
    over = page.page.eval_on_selector_all(
        ".scroll", "els => els.map(e => e.scrollWidth - e.clientWidth)"
    )
    assert len(over) == 5 and max(over) <= 0
    page.page.close()


def test_the_legend_hides_a_choice_in_every_curve(browser: Any, report: Path) -> None:
    page = Page(browser, report, 1280)
    before = page.traces("svg .trace")
    buttons = page.page.locator(".legend button[data-choice]")
    assert buttons.count() == len(CHOICES)
    buttons.nth(2).click()
    assert buttons.nth(2).get_attribute("aria-pressed") == "false"
    after = page.traces("svg .trace")
    for name in before:
        curve = name.startswith(("val-", "train-", "apart-"))
        assert after[name] == before[name] - (2 if curve else 0), name
    buttons.nth(5).dblclick()
    assert page.traces("svg .trace")["val-steps"] == 2
    page.page.locator(".legend .all").click()
    assert page.traces("svg .trace") == before
    page.page.close()


def test_a_mark_tells_its_run_under_the_pointer(browser: Any, report: Path) -> None:
    page = Page(browser, report, 1280)
    page.page.locator("#speed-plot .point").first.hover(force=True)
    page.page.wait_for_selector("#speed-plot .hoverlayer .hovertext")
    said = page.texts("#speed-plot .hoverlayer .hovertext")
    assert any("real tokens/s" in text for text in said)
    page.page.close()


def test_colours_follow_the_scheme_and_paper_is_white(browser: Any, report: Path) -> None:
    page = Page(browser, report, 1280, "dark")
    script = "getComputedStyle(document.querySelector('#speed-plot .js-line')).stroke"
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, dark_ground = page.page.evaluate(script), page.page.evaluate(ground)
    page.page.emulate_media(color_scheme="light")
    page.page.wait_for_function(f"{script} !== {dark!r}")
    assert page.page.evaluate(ground) == "rgb(255, 255, 255)" != dark_ground
    light = page.page.evaluate(script)
    page.page.emulate_media(color_scheme="dark", media="print")
    assert page.page.evaluate(ground) == "rgb(255, 255, 255)"
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.page.evaluate(script) == light
    assert page.page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    page.page.close()


def test_names_run_no_script(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    for seed in (1, 2):
        write_run(tmp_path / f"a{seed}", Synthetic(seed=seed))
        run = Synthetic(seed=seed, overrides={"packing.pad_multiple": evil})
        write_run(tmp_path / f"b{seed}", run)
    write_run(tmp_path / "<img src=y onerror=alert(3)>", Synthetic(finished=False))
    page = Page(browser, write_report([tmp_path], tmp_path), 1280)
    alerts: list[Any] = []
    page.page.on("dialog", lambda dialog: alerts.append(dialog.message))
    page.page.reload()
    assert page.said == [] and alerts == []
    assert {url for url in page.asked if not url.startswith("data:")} == {page.url}
    assert any(evil in text for text in page.texts("#speed tbody th"))
    assert any(evil in text for text in page.texts("#speed-plot .ytick"))
    page.page.close()


@pytest.mark.parametrize("case", ["one run", "no validations", "nothing timed", "all failed"])
def test_a_page_with_little_on_it_is_quiet_too(browser: Any, tmp_path: Path, case: str) -> None:
    change: dict[str, dict[str, Any]] = {
        "no validations": {"eval_every": 0},
        "nothing timed": {"skip_steps": 99, "new_metrics": False},
        "all failed": {"finished": False},
    }
    write_run(tmp_path / "a", Synthetic(**change.get(case, {})))
    page = Page(browser, write_report([tmp_path], tmp_path), 390)
    assert page.said == []
    assert page.page.evaluate("document.documentElement.scrollWidth") == 390
    drawn = page.traces("svg .trace")
    assert ("train-steps" in drawn) is (case != "all failed")
    assert ("val-steps" in drawn) is (case in ("one run", "nothing timed"))
    assert all(drawn.values())
    page.page.close()


def test_a_huge_sweep_is_drawn(browser: Any, tmp_path: Path) -> None:
    """60 choices, more than there are colours."""
    for size in range(60):
        run = Synthetic(mode="loader", overrides={"packing.buffer_size": 16 + size}, steps=12)
        write_run(tmp_path / f"{size}", run)
    page = Page(browser, write_report([tmp_path], tmp_path), 1280)
    assert page.said == []
    assert len(page.texts("#speed tbody tr")) == 60
    assert page.traces("svg .trace")["val-steps"] == 60
    page.page.close()
