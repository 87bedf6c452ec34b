"""Pages of the dashboard in a browser, for its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 20_000
"""Milliseconds until something counts as not there; most is there at once."""
_USUAL: dict[str, Any] = {"viewport": {"width": 1100, "height": 700}, "reduced_motion": "reduce"}
Open = Callable[..., "Page"]


@contextmanager
def launched(executable: Path) -> Iterator[Browser]:
    """Start a browser."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]  # as root in a container there is no sandbox
        browser = playwright.chromium.launch(executable_path=str(executable), args=arguments)
        yield browser
        browser.close()


@contextmanager
def opening(browser: Browser) -> Iterator[Open]:
    """Open pages, and hold them to it: no errors, and no request to anybody else."""
    contexts, faults, requests = [], [], []
    allowed: set[str] = set()

    def open_page(address: str, *, expect_fault: str = "", **options: Any) -> Page:
        context = browser.new_context(**_USUAL | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda message: (
                message.type in ("error", "warning")
                and not (expect_fault and expect_fault in message.text)
                and faults.append(message.text)
            ),
        )
        page.on("request", lambda request: requests.append(request.url))
        allowed.add("/".join(address.split("/")[:3]))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
    assert [one for one in requests if not one.startswith((*allowed, "data:"))] == []


def expect(locator: Any) -> Any:
    """Wait for what a page is to show, as Playwright's own ``expect``."""
    from playwright.sync_api import expect

    return expect(locator)


def expect_zoom_by_touch(page: Page) -> None:
    """A finger marks steps, two taps show all, two fingers pinch, and up and down scrolls the page."""
    page.keyboard.press("1")
    plot = page.locator(".plot[data-metric='kl'] .u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    devtools = page.context.new_cdp_session(page)

    def touch(kind: str, *shares: float, y: float = 0.5) -> None:
        places = [
            {"x": box["x"] + share * box["width"], "y": box["y"] + y * box["height"], "id": number}
            for number, share in enumerate(shares)
        ]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    out = page.get_by_role("button", name="Zoom out")
    touch("touchStart", 0.3)
    for share in (0.4, 0.6, 0.8):
        touch("touchMove", share)
    touch("touchEnd")
    expect(out).to_be_visible()
    shown = page.evaluate("document.querySelector('[data-metric=kl] .u-over').getBoundingClientRect().y")
    assert shown == box["y"], "nothing may move under the finger"
    page.keyboard.press("r")
    expect(out).to_be_hidden()
    touch("touchStart", 0.4, 0.6)
    for share in (0.3, 0.2, 0.1):
        touch("touchMove", share, 1 - share)
    touch("touchEnd")
    expect(out).to_be_visible()
    touch("touchStart", 0.1, 0.9)
    for share in (0.2, 0.3, 0.4):
        touch("touchMove", share, 1 - share)
    touch("touchEnd")
    expect(out).to_be_hidden()
