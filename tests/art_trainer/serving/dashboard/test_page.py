"""The page in a browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from art_trainer.cli.dash import serving
from art_trainer.distributed.protocol import ClientStatus, LeaseStatus, QueueStatus, ServerStatus
from art_trainer.serving.dashboard import RunsSource, dashboard_router
from art_trainer.serving.http.middleware import AccessPolicy, HostNames
from art_trainer.serving.http.server import ServerThread, create_app
from tests.art_trainer.serving.dashboard.run_folders import DashRun, group, judged

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
TOKEN = "a-token-of-some-length"
PATIENCE = 200_000
"""Milliseconds until something counts as not there; most is there at once."""
pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}: make setup-system"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]  # as root in a container there is no sandbox
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        yield browser
        browser.close()


def expect(locator: Any) -> Any:
    """Wait for what a page is to show, as Playwright's own ``expect``."""
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    return expect(locator)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of them with markup in everything that is text."""
    root = tmp_path_factory.mktemp("runs")
    first = DashRun(root / "first")
    for step in range(1, 6):
        first.step(step)
    first.step(6, [type(group(8, (1.0,)))((judged(8), judged(8)))])
    first.warn(2)
    first.evaluate("before", 3)
    first.evaluate("after", 17)
    first.save_tokenizer()
    second = DashRun(root / "second")
    for step in range(1, 4):
        second.step(step, reward=-step)
    return root


@pytest.fixture(scope="module")
def url(runs: Path) -> Iterator[str]:
    with serving((runs,)) as url:
        yield url


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts servers that end after the pages of ``open_page``: a page that loses one reports errors."""
    with ExitStack() as servers:
        yield lambda *folders, **options: servers.enter_context(serving(folders, **options))


@pytest.fixture
def open_page(browser: Browser, serve: Callable[..., str]) -> Iterator[Callable[..., Page]]:
    """Opens pages, and holds them to it: no errors, and no request to anybody else."""
    contexts, faults, requests = [], [], []
    allowed: set[str] = set()

    def open_page(address: str, *, expect_fault: str = "", **options: Any) -> Page:
        usual = {"viewport": {"width": 1100, "height": 700}, "reduced_motion": "reduce"}
        contexts.append(browser.new_context(**usual | options))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)

        def listen(message: Any) -> None:
            expected = expect_fault and expect_fault in message.text
            if message.type in ("error", "warning") and not expected:
                faults.append(message.text)

        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", listen)
        page.on("request", lambda request: requests.append(request.url))
        allowed.add("/".join(address.split("/")[:3]))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
    assert [one for one in requests if not one.startswith((*allowed, "data:"))] == []


def test_the_overview_shows_runs_curves_warnings_and_evaluations(open_page, url):
    page = open_page(url)
    expect(page.locator("table.runs tbody tr")).to_have_count(2)
    expect(page.locator(".plot[data-metric='staleness/mean']")).to_have_count(1)
    expect(page.locator(".plot[data-metric='reward']")).to_have_attribute(
        "aria-label",
        re.compile("^Reward: first .*, second −3$"),  # the last value, which is not smoothed
    )
    expect(page.locator(".warnings li")).to_contain_text("<script>")
    expect(page.locator("table.evaluations tr.after")).to_contain_text("85.0%")
    page.get_by_label("Show the curves of second").uncheck()
    expect(page.locator(".plot[data-metric='reward'] .legend .item")).to_have_count(1)
    page.keyboard.press("l")
    expect(page.get_by_role("button", name="Log scale")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".plot[data-metric='loss']")).to_contain_text("No value above zero")
    page.locator(".chooser summary").click()
    page.get_by_role("searchbox", name="Find a metric").fill("rollout")
    page.locator(".options input").check()
    expect(page.locator(".plot[data-metric='time/rollout'] canvas")).to_be_visible()


def test_a_run_that_cannot_learn_has_a_badge(open_page, serve, tmp_path):
    flat = {"frac_reward_zero_std": 1.0, "trained_tokens": 0.0, "grad_norm": 0.0, "reward": 0.0}
    for name in ("dead", "alive"):
        run = DashRun(tmp_path / name)
        for step in (1, 2, 3):
            run.step(step, **(flat if name == "dead" else {}))
    rows = open_page(serve(tmp_path)).locator("table.runs tbody tr")
    expect(rows.filter(has_text="dead").locator(".chip.bad")).to_have_text(
        "cannot learn: the reward never moves"
    )
    expect(rows.filter(has_text="alive").locator(".chip.bad")).to_have_count(0)
    alone = open_page(serve(tmp_path / "dead"))
    expect(alone.locator(".hero .notice")).to_contain_text("No step from 1 to 3 had a gradient")


def test_many_runs_are_found_sorted_and_grouped_and_a_constant_is_level(open_page, serve, tmp_path):
    for k in range(12):
        run = DashRun(tmp_path / f"run-{k}", max_steps=4)
        run.log.write_settings({"env": f"toy/Kind{k % 2}-v0", "model": "art-tiny", "max_steps": 4})
        for step in (1, 2, 3):
            run.step(step, reward=k + 0.1 + 0.2 if step == 2 else k + 0.3)
    page = open_page(serve(tmp_path))
    rows = page.locator("table.runs tbody tr")
    names = page.locator("table.runs tbody th button")
    expect(rows).to_have_count(12)
    points = page.locator(".runs polyline").first.get_attribute("points")
    assert len({point.split(",")[1] for point in points.split()}) == 1
    page.get_by_role("button", name="Reward").click()
    expect(names.first).to_have_text("run-11")
    page.get_by_role("combobox", name="Group the runs").select_option("env")
    expect(page.locator("tr.group")).to_have_text(["toy/Kind0-v0", "toy/Kind1-v0"])
    expect(names.nth(0)).to_have_text("run-10")
    expect(names.nth(6)).to_have_text("run-11")
    page.get_by_role("searchbox", name="Find runs").fill("kind1 run-1")
    expect(names).to_have_text(["run-11", "run-1"])
    page.get_by_role("button", name="Show the curves of these").click()
    expect(page.locator(".plot[data-metric='reward']")).to_have_attribute(
        "aria-label", re.compile(r"run-1 1\.3, run-11 11\.3$")
    )


def curves(page):
    """The curves of a metric, when all runs are drawn, and the place where they are."""
    plot = page.locator(".plot[data-metric='kl'] .u-over")
    expect(page.locator(".plot[data-metric='kl'] .legend .item")).to_have_count(2)
    plot.scroll_into_view_if_needed()
    return plot, plot.bounding_box(), page.get_by_role("button", name="Zoom out")


def test_dragging_zooms_all_curves_and_a_key_zooms_out(open_page, url):
    page = open_page(url)
    _, box, out = curves(page)
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(out).to_be_visible()
    page.keyboard.press("r")
    expect(out).to_be_hidden()
    page.keyboard.press("+")
    expect(out).to_be_visible()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("-")
    expect(out).to_be_hidden()


def test_an_episode_is_a_conversation_of_tokens_and_its_markup_is_inert(open_page, url):
    page = open_page(f"{url}#/episodes/0/6/0")
    expect(page.locator(".said.agent")).to_have_count(2)
    expect(page.locator(".said.task")).to_contain_text("<script>window.hacked = 1</script>")
    expect(page.locator(".judge blockquote")).to_contain_text("Well done <script>")
    expect(page.locator(".judge")).to_contain_text("brevity")
    page.locator(".summary details summary").first.click()
    expect(page.locator(".summary pre").first).to_contain_text("onerror")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0
    shaded = page.locator(".reply .t")
    expect(shaded.first).to_have_text("search")
    page.locator(".reply .t.s3").first.hover()
    expect(page.locator("#tip")).to_contain_text("log-prob −1")
    expect(page.locator(".strip-of-tokens .t")).to_have_count(0)
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Shade tokens")).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("p")
    page.goto(f"{url}#/episodes/1/1/0")  # of a run without a tokenizer
    expect(page.locator(".strip-of-tokens")).to_have_count(2)
    page.locator(".strip-of-tokens .t").nth(1).hover()
    expect(page.locator("#tip")).to_contain_text("token 2 of")


def test_the_keyboard_goes_everywhere(open_page, url):
    page = open_page(url)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("task")
    page.keyboard.press("Escape")
    expect(page.locator(".found")).to_have_text(re.compile("^0 of"))
    expect(page.get_by_text("No matching episode")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".found")).to_have_text("22 episodes")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator(".row.selected")).to_have_attribute("aria-rowindex", "3")
    page.locator(".grid").focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text(["task-8"])
    page.keyboard.press("j")
    expect(page.locator("h1")).to_contain_text(["task-10"])
    expect(page).to_have_url(re.compile("/0/5/0$"))
    page.keyboard.press("c")
    expect(page).to_have_url(re.compile("/0/5/0/vs/1$"))
    expect(page.locator(".beside .column")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("/0/5/0$"))
    page.keyboard.press("Escape")
    expect(page.locator(".row.selected")).to_have_attribute("aria-rowindex", "4")
    page.keyboard.press("1")
    expect(page.locator("table.runs")).to_be_visible()


def test_the_table_sorts_and_filters(open_page, url):
    page = open_page(f"{url}#/episodes")
    page.get_by_role("button", name="Reward").click()
    expect(page.locator("[data-sort='reward']")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="Reward").click()
    expect(page.locator(".rows .row").first.locator(".reward")).to_have_text("0")
    page.get_by_role("combobox", name="Outcome").select_option("success")
    page.get_by_label("Step from").fill("5")
    expect(page.locator(".found")).to_have_text("4 of 22 episodes")
    expect(page.locator(".rows .row")).to_have_count(4)
    page.get_by_role("combobox", name="Run").select_option("1")
    expect(page.get_by_text("No matching episode")).to_be_visible()


_FAINT_TEXTS = Path(__file__).with_name("faint_texts.js").read_text(encoding="utf-8")
"""Gives the number of texts in sight, and those of a contrast under WCAG's 4.5 (level AA)."""


def test_a_phone_needs_no_sideways_scrolling(open_page, url):
    page = open_page(url, viewport={"width": 390, "height": 844})
    for view in ("", "episodes", "episodes/0/6/0", "episodes/0/1/0/vs/1", "workers"):
        page.evaluate("(hash) => { location.hash = hash; }", f"#/{view}")
        expect(page.locator("main :is(.card, .empty):visible").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view


def test_a_live_run_draws_itself(open_page, serve, tmp_path):
    page = open_page(serve(tmp_path))
    expect(page.get_by_text("No run here yet").first).to_be_visible()
    run = DashRun(tmp_path / "new")
    expect(page.get_by_text("Waiting for the first step")).to_be_visible()
    run.step(1)
    expect(page.locator(".tile").first).to_contain_text("0.1")
    run.step(2)
    expect(page.locator(".tile").first).to_contain_text("0.2")
    assert page.title() == "20% new · ART"
    page.keyboard.press("2")
    expect(page.locator(".rows .row")).to_have_count(8)
    run.step(3)
    expect(page.locator(".rows .row")).to_have_count(12)


def test_a_lost_server_is_said_and_found_again(open_page, runs):
    with serving((runs,)) as url:
        page = open_page(url, expect_fault="ERR_")
        expect(page.locator("#link")).to_have_attribute("data-state", "live")
        page.keyboard.press("2")
        expect(page.locator(".rows .row")).not_to_have_count(0)
    expect(page.get_by_text("The server does not answer")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: "/episodes" in request.url and asked.append(request.url))
    page.evaluate("location.hash = '#/episodes/0/1/0'")
    expect(page.get_by_text("The episode cannot be shown")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".rows .row")).not_to_have_count(0)
    page.wait_for_timeout(400)
    assert len(asked) < 4, "a lost server is not asked again and again"
    page.evaluate("location.hash = '#/episodes/0/1/0'")
    port = int(url.rstrip("/").rsplit(":", 1)[1])
    with serving((runs,), port=port):
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator(".said.agent")).to_have_count(2)
        expect(page.locator("#lost")).to_be_hidden()


def test_the_page_asks_for_the_token_and_keeps_it_in_the_tab(open_page, serve, runs, tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    page = open_page(serve(runs, token_file=file), expect_fault="Failed to load")
    dialog = page.get_by_role("dialog", name="This server requires a token")
    expect(dialog).to_be_visible()
    page.locator("#login-token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_text("rejected this token")).to_be_visible()
    page.locator("#login-token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("table.runs tbody tr")).to_have_count(2)
    assert TOKEN not in page.url
    assert TOKEN not in page.content()
    assert page.evaluate("Object.values(localStorage).join()").find(TOKEN) < 0
    page.reload()
    expect(page.locator("table.runs tbody tr")).to_have_count(2)
    expect(dialog).to_be_hidden()


@contextmanager
def serving_status(runs: Path, status: ServerStatus) -> Iterator[str]:
    """A dashboard beside a training server."""
    app = create_app(AccessPolicy(HostNames("127.0.0.1"), 1000, allow_same_origin=True), "a page at /")
    closing = threading.Event()
    app.include_router(dashboard_router(RunsSource([runs / "first"], lambda: status), closing=closing))
    server = ServerThread(app, "127.0.0.1", 0, name="dashboard", timeout_graceful_shutdown=1)
    try:
        yield f"{server.url}/"
    finally:
        closing.set()
        server.stop()


def test_workers_queue_and_leases(open_page, runs):
    client: dict[str, Any] = {
        "policy_version": 4, "leases": 1, "episodes_played": 9, "episodes_per_second": 0.5,
        "last_seen_seconds": 1.0, "last_error": None, "software": {"torch": "2"},
    }  # fmt: skip
    gone = client | {"last_error": "<b>out of memory</b>"}
    workers = [
        ClientStatus(id="well", connected=True, **client),
        ClientStatus(id="gone", connected=False, **gone),
    ]
    status = ServerStatus(
        state="training", run="first", env="toy/Mail-v0", step=6, max_steps=10, policy_version=5,
        uptime_seconds=60.0, seconds_left=600.0, clients=workers,
        queue=QueueStatus(waiting=3, leased=1, finished=0, groups_waiting=2),
        leases=[
            LeaseStatus(lease=str(left), client="well", group="3.1.2", attempt=2, seconds_left=left)
            for left in (40.0, 3.0)
        ],
        results={"accepted": 18, "expired": 1},
    )  # fmt: skip
    with serving_status(runs, status) as url:
        page = open_page(url, expect_fault="ERR_")
        expect(page.locator(".strip")).to_contain_text("1 of 2")
        expect(page.locator(".hero")).to_contain_text("10 min left")
        page.keyboard.press("3")
        expect(page.locator("table.clients tbody tr")).to_have_count(2)
        expect(page.locator("table.clients")).to_contain_text("<b>out of memory</b>")
        expect(page.locator("table.leases tbody tr")).to_have_text("well3.1.222 again3 s")
        expect(page.locator("table.clients tbody tr").last).to_contain_text("disconnected")
        expect(page.locator(".results")).to_contain_text("18")
        page.keyboard.press("1")
    expect(page.locator("#lost")).to_contain_text("The run's server has ended.")
    expect(page.locator("#lost code")).to_have_text(f"art-trainer dash {runs / 'first'}")
    expect(page.locator("#link")).to_have_text("ended")
    expect(page.locator(".hero")).to_contain_text("ended early")
    expect(page.locator(".hero")).to_contain_text("step 6 of 10")
