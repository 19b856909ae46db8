"""What the tests of the status page do in the browser:

    status_page.py CASE URL [ARGUMENT ...]

A case fails by an exception. None sleeps for luck: each waits for a condition.
"""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.request

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By

from chromium import browser

LIMIT = 20.0


def until(what, condition, limit=LIMIT):
    """Waits until a condition gives something true, and gives that."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        with contextlib.suppress(StaleElementReferenceException):
            if found := condition():
                return found
        time.sleep(0.05)
    raise AssertionError(f"not within {limit} s: {what}")


def one(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def text(driver, selector):
    return one(driver, selector).text


def number(words):
    found = re.search(r"[\d,.]+", words)
    return float(found[0].replace(",", "")) if found else 0.0


def open_page(driver, url):
    driver.get(url)
    until("the page shows something", lambda: one(driver, "main").is_displayed())


def assert_no_complaints(driver):
    """Neither an error of the script nor a breach of the policy of contents."""
    said = [it for it in driver.get_log("browser") if it["level"] == "SEVERE"]
    assert not said, said


def row_of(driver, endpoint):
    for row in driver.find_elements(By.CSS_SELECTOR, ".upstream tbody tr"):
        if row.find_element(By.CSS_SELECTOR, ".open").text == endpoint:
            return row
    return None


def state_of(driver, endpoint):
    return row_of(driver, endpoint).find_element(By.CSS_SELECTOR, ".state").text


def requests_at(origin):
    """What the origin itself has counted."""
    with urllib.request.urlopen(f"http://{origin}/origin/stats") as answer:
        return json.load(answer)["requests"]


def figures(url):
    with browser() as driver:
        open_page(driver, url)
        rate = lambda: number(text(driver, "#rate"))
        until("a rate is shown", lambda: rate() > 10)
        seen = set()
        until("it changes", lambda: seen.add(text(driver, "#rate-note")) or len(seen) >= 4)
        until("response times are shown", lambda: text(driver, "#p99").endswith("ms"))
        # The unit that `top` and `ctl` have.
        until("bytes are in kB", lambda: "kB/s" in text(driver, "#numbers"))
        plot = lambda: one(driver, "#rate-plot path.line").get_attribute("d")
        before = plot()
        until("the plot moves", lambda: plot() != before)
        until("all is well", lambda: text(driver, "#verdict") == "all well: 2 endpoints up")
        shares = lambda: [it.text for it in driver.find_elements(By.CSS_SELECTOR, ".upstream td:nth-child(5)")]
        until("both have their half", lambda: shares() == ["50 %", "50 %"], limit=60)
        until("probes have answers", lambda: "status 200" in text(driver, ".upstream td:nth-child(3)"))
        # The last hour, and back.
        one(driver, "[data-span=hour]").click()
        until("the hour is chosen", lambda: one(driver, "[data-span=hour]").get_attribute("aria-pressed") == "true")
        one(driver, "[data-span=minute]").click()
        assert not one(driver, "#caches").is_displayed()
        assert_no_complaints(driver)


def give_token(driver, token):
    until("the token is asked for", lambda: one(driver, "#ask").is_displayed())
    one(driver, "#token").send_keys(token)
    one(driver, "#ask-form button").click()


def drain(url, first, second, token):
    with browser() as driver:
        open_page(driver, url)
        until("both are up", lambda: state_of(driver, first) == "up" and state_of(driver, second) == "up")
        row_of(driver, first).find_element(By.CSS_SELECTOR, ".open").click()
        until("the endpoint is shown", lambda: first in text(driver, "#endpoint-name"))
        until("its figures are", lambda: "Attempts" in text(driver, "#endpoint-figures"))

        one(driver, "[data-admin=drain]").click()
        give_token(driver, "a-wrong-token-of-somebody")
        until("the wrong token is said", lambda: "wrong token" in text(driver, "#endpoint-done"))
        assert "bad" in one(driver, "#endpoint-done").get_attribute("class")
        assert text(driver, "#endpoint-state") == "up"

        one(driver, "[data-admin=drain]").click()
        give_token(driver, token)
        until("it is done", lambda: text(driver, "#endpoint-done") == f"endpoint app/{first} is drained: it gets no new requests")
        until("it drains", lambda: text(driver, "#endpoint-state") == "draining")

        # Probes go on, three a second and more; requests were a hundred.
        def stands_still():
            before, other = requests_at(first), requests_at(second)
            until("the other goes on", lambda: requests_at(second) > other + 50)
            return requests_at(first) - before < 10

        until("the traffic leaves it", stands_still)
        one(driver, "#endpoint .close").click()
        until("the list says it", lambda: state_of(driver, first) == "draining")
        until("the top says it", lambda: first in text(driver, "#problems"))
        until("the events say it", lambda: f"endpoint {first} is drained by the operator" in text(driver, "#event-list"))

        # Not asked again.
        row_of(driver, first).find_element(By.CSS_SELECTOR, ".open").click()
        one(driver, "[data-admin=ready]").click()
        until("it is ready", lambda: text(driver, "#endpoint-state") == "up")
        before = requests_at(first)
        until("the traffic is back", lambda: requests_at(first) > before + 50)

        weight = one(driver, "#weight")
        weight.clear()
        weight.send_keys("3")
        one(driver, "#weigh button").click()
        until("it weighs more", lambda: text(driver, "#endpoint-done") == f"endpoint app/{first} is at weight 3")

        # To stop it is asked twice.
        one(driver, "[data-admin=stop]").click()
        until("that is asked", lambda: one(driver, "#confirm").is_displayed())
        one(driver, "#confirm-no").click()
        until("no is no", lambda: not one(driver, "#confirm").is_displayed())
        assert text(driver, "#endpoint-state") == "up"
        one(driver, "[data-admin=stop]").click()
        one(driver, "#confirm-yes").click()
        until("it is stopped", lambda: text(driver, "#endpoint-state") == "stopped")
        said = [it["message"] for it in driver.get_log("browser") if it["level"] == "SEVERE"]
        # The wrong token's answer is all that there is to complain about.
        assert all("401" in it for it in said), said


def broken(url, gone):
    with browser() as driver:
        open_page(driver, url)
        first = lambda: next((it.text for it in driver.find_elements(By.CSS_SELECTOR, "#problems li")), "")
        until("the top says what is down, and why", lambda: first().startswith("down") and gone in first() and "connection refused" in first())
        assert text(driver, "#verdict") == "1 problem"
        assert driver.title == "1 problem · Evenkeel"
        problem, table = one(driver, "#problems"), one(driver, "#upstreams")
        assert problem.location["y"] < table.location["y"]
        until("its row too", lambda: state_of(driver, gone) == "down")
        assert_no_complaints(driver)


def problems(driver):
    return [it.text for it in driver.find_elements(By.CSS_SELECTOR, "#problems li")]


def some_out(url, first, second):
    with browser() as driver:
        open_page(driver, url)

        def is_said():
            lines = problems(driver)
            return len(lines) == 1 and all(it in lines[0] for it in ("2 of 3 endpoints of upstream app", "connection refused", first, second))

        until("two endpoints are one line", is_said)
        assert text(driver, "#verdict") == "1 problem"
        driver.find_elements(By.CSS_SELECTOR, "#problems button")[-1].click()
        until("a name opens its endpoint", lambda: second in text(driver, "#endpoint-name"))
        assert_no_complaints(driver)


def all_out(url, *names):
    with browser() as driver:
        open_page(driver, url)

        def is_said():
            lines = problems(driver)
            wanted = ("no endpoint", "upstream app has no endpoint that takes requests", "all 3 down: connection refused", *names)
            # The route's errors have the same cause.
            return len(lines) == 1 and all(it in lines[0] for it in wanted)

        until("all of it is one line", is_said)
        until("with what becomes of requests", lambda: "waiting" in problems(driver)[0] or "failed" in problems(driver)[0])
        failed = lambda: driver.find_elements(By.CSS_SELECTOR, ".upstream .stat .bad")
        until("it stays one line where requests fail", lambda: failed() and is_said())
        assert text(driver, "#verdict") == "1 problem"
        assert_no_complaints(driver)


def counted(url, gone, drained, token):
    with browser() as driver:
        open_page(driver, url)
        order = json.dumps({"upstream": "app", "endpoint": drained, "admin": "drain"}).encode()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
        urllib.request.urlopen(urllib.request.Request(url + "endpoints", order, headers)).close()
        lines = lambda: " ".join(problems(driver))
        until("one is down, one draining", lambda: gone in lines() and drained in lines())
        # A busy machine may have another one for a moment.
        until("there are two", lambda: len(problems(driver)) == 2)
        until("two are told", lambda: text(driver, "#verdict") == "2 problems")
        assert driver.title == "2 problems · Evenkeel"
        assert_no_complaints(driver)


# Parts of a path such as `M10.0 100v-4.00h5v4.00z`, by where they begin.
BARS = """
const bars = document.querySelector("#rate-plot .errors").getAttribute("d").matchAll(/M[\\d.]+ (\\d+)v-([\\d.]+)/g);
const max = Number(document.querySelector("#rate-plot .max").textContent);
return [...bars].map(([, bottom, height]) => [Number(bottom), (Number(height) / 100) * max]);
"""


def errors(url):
    with browser(390, 844, phone=True) as driver:
        open_page(driver, url)
        said = lambda: re.fullmatch(r"(\d+) errors in the last minute", text(driver, "#rate-errors"))
        until("errors are counted", lambda: said() and int(said()[1]) >= 4)

        def are_to_scale():
            drawn = driver.execute_script(BARS)
            heights = [height for bottom, height in drawn if bottom == 100]
            ticks = [height for bottom, height in drawn if bottom > 100]
            return len(heights) == len(ticks) >= 3 and all(0.9 < it < 3.1 for it in heights)

        until("a bar is as high as its errors", are_to_scale)
        health = [it.text for it in driver.find_elements(By.CSS_SELECTOR, ".upstream .health")]
        assert "no endpoint configured" in health, health
        one(driver, "#upstreams .open").click()
        figures = lambda: text(driver, "#endpoint-figures")
        until("each figure has its name", lambda: re.search(r"2xx: \d+ · 3xx: 0 · 4xx: 0 · 5xx: [1-9]", figures()))
        for name in ("Went down\n0 times", "Ejected\n", "Sent\n", "Received\n", "Connections idle\n"):
            assert name in figures(), (name, figures())
        until("errors of the endpoint", lambda: re.search(r"[1-9]\d* errors", text(driver, "#endpoint-plots .key.errors")))


def row(url, name):
    with browser() as driver:
        open_page(driver, url)
        until("both are up", lambda: state_of(driver, name) == "up")
        opened = lambda: one(driver, "#endpoint").is_displayed()
        for column in (2, 3, 4, 5, 6):
            row_of(driver, name).find_element(By.CSS_SELECTOR, f"td:nth-child({column})").click()
            until("the endpoint is shown", lambda: name in text(driver, "#endpoint-name"))
            one(driver, "#endpoint .close").click()
            until("it is closed", lambda: not opened())
        # Who selects a text wants no window.
        cell = row_of(driver, name).find_element(By.CSS_SELECTOR, "td:nth-child(3)")
        driver.execute_script("getSelection().selectAllChildren(arguments[0]); arguments[0].click()", cell)
        assert not opened()
        # Only rows that open something look as if they did.
        cursor = "return getComputedStyle(document.querySelector(arguments[0])).cursor"
        assert driver.execute_script(cursor, ".upstream tbody td") == "pointer"
        assert driver.execute_script(cursor, "#listener-table tbody td") != "pointer"
        assert_no_complaints(driver)


def first_probe(url, gate):
    with browser() as driver:
        open_page(driver, url)
        probe = lambda: text(driver, ".upstream td:nth-child(3)")
        until("no probe was answered yet", lambda: probe() == "not yet")
        host, port = gate.rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=LIMIT).close()
        until("its answer takes the place", lambda: re.fullmatch(r"status 200 · \d+ s ago", probe()))
        assert_no_complaints(driver)


def queue(url):
    with browser() as driver:
        open_page(driver, url)
        waiting = lambda: text(driver, ".upstream summary [title^='in the queue']")
        until("it says how long requests wait", lambda: re.fullmatch(r"\d+ waiting, p99 \d+ ms", waiting()))
        one(driver, ".upstream .open").click()
        until("the endpoint is shown", lambda: "First byte" in text(driver, "#endpoint-figures"))
        assert "queue" not in text(driver, "#endpoint-figures")
        assert_no_complaints(driver)


WIDTHS = [1400, 1381, 1300, 1280, 1241, 1200, 1181, 1180, 1024, 768, 680, 390, 320]
SHEET = os.path.join(os.path.dirname(__file__), "status_page.js")


def show(driver, width, scheme, media="screen"):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    metrics = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": width < 700}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def widths(url, down):
    with open(SHEET) as file:
        sheet = file.read()
    with browser() as driver:
        # Small, so that most rows are never in sight.
        show(driver, 1400, "light")
        open_page(driver, url)
        until("the probes were made", lambda: row_of(driver, down).find_element(By.CSS_SELECTOR, ".state").text == "down" and "not yet" not in text(driver, "#upstreams"))
        until("times are there", lambda: "ms" in text(driver, "#listener-table"))
        until("misses are there", lambda: "a-parameter-whose-name" in text(driver, "#caches"))
        until("its server is missed", lambda: "without its shared server" in text(driver, "#problems"))
        rows = text(driver, "#listener-table")
        assert rows.count("/ 10,000") == 2 and "/ 0" not in rows, f"rows out of sight: {rows}"
        assert "/ 0" not in text(driver, "#disk-table")
        looks = [(width, scheme, "screen") for scheme in ("light", "dark") for width in WIDTHS]
        for width, scheme, media in [*looks, (717, "dark", "print")]:
            show(driver, width, scheme, media)
            look = f"{width} px, {scheme}, {media}"
            assert driver.execute_script("return innerWidth") == width, look
            assert overflow(driver) <= 0, look
            faults = driver.execute_script(sheet)
            assert not faults, f"{look}: {json.dumps(faults, indent=1)}"
            # The reason is there to be read, beside the name that it belongs to.
            assert "connection refused" in row_of(driver, down).text, look
            for table in ("#listener-table", "#disk-table", "#route-table", "#cache-list"):
                names = [it.text for it in driver.find_elements(By.CSS_SELECTOR, f"{table} tbody th")]
                assert names and all(names), (look, table, names)
        # A page that is dark on the screen is printed on white.
        assert driver.execute_script("return getComputedStyle(document.documentElement).colorScheme") == "light"
        show(driver, 320, "light")
        one(driver, ".upstream .open").click()
        until("the endpoint is shown", lambda: "Attempts" in text(driver, "#endpoint-figures"))
        assert overflow(driver) <= 0
        faults = driver.execute_script(sheet)
        assert not faults, f"the dialog: {json.dumps(faults, indent=1)}"
        one(driver, "#endpoint .close").click()
        one(driver, ".cache .danger").click()
        until("the purge is asked about", lambda: one(driver, "#purge").is_displayed())
        assert overflow(driver) <= 0
        faults = driver.execute_script(sheet)
        assert not faults, f"the purge: {json.dumps(faults, indent=1)}"
        assert_no_complaints(driver)


def caches(url, token):
    with browser() as driver:
        open_page(driver, url)
        cache = lambda selector: text(driver, ".cache " + selector)
        until("it has hits", lambda: re.fullmatch(r"\d+ % hits", cache(".health")))
        until("most of them", lambda: number(cache(".health")) > 50)
        until("bodies are saved", lambda: re.search(r"[\d.]+ [kM]B/s saved", cache("summary")))
        assert "memory, shared" in cache("summary")
        row = lambda: cache("tbody tr")
        until("requests go past it", lambda: re.search(r"pages\n.*B/s", row().replace(" ", "\n"), re.DOTALL))
        facts = lambda: dict(zip(*[[it.text for it in driver.find_elements(By.CSS_SELECTOR, f".cache {tag}")] for tag in ("dt", "dd")]))
        until("it holds one", lambda: facts()["Memory"].startswith("1 response, "))
        assert "Disk" not in facts(), facts()
        until("misses are listed", lambda: "/medium-payload?token=*" in cache(".misses"))
        assert re.search(r"rule\s+[\d,]+ · \d+ %", cache(".misses")), cache(".misses")
        assert "s3cret" not in driver.page_source
        until("a server that is not there is said", lambda: "cache main does without its shared server" in text(driver, "#problems"))

        one(driver, ".cache .danger").click()
        until("it is asked what", lambda: one(driver, "#purge").is_displayed())
        assert text(driver, "#purge-name") == "Purge cache main"
        choose = lambda what: one(driver, f"[data-what={what}]").click()
        write = lambda words: (one(driver, "#purge-text").clear(), one(driver, "#purge-text").send_keys(words))
        go = lambda: one(driver, "#purge-go").click()
        said = lambda: text(driver, "#purge-done")
        choose("prefix")
        write("/medium")
        go()
        give_token(driver, "a-wrong-token-of-somebody")
        until("the wrong token is said", lambda: "wrong token" in said())
        go()
        give_token(driver, token)
        until("a mistake is said", lambda: "`/medium` is not a URL with a host" in said())
        assert "bad" in one(driver, "#purge-done").get_attribute("class")
        write("http://example.com/medium")
        one(driver, "#purge-soft").click()
        go()
        until("it is done", lambda: said() == "cache main: purged softly prefix http://example.com/medium")
        one(driver, "#purge-soft").click()
        choose("tag")
        write("news")
        go()
        until("a tag is purged", lambda: said() == "cache main: purged tag news")
        choose("everything")
        assert not one(driver, "#purge-text").is_displayed()
        # To drop everything it is asked twice.
        go()
        until("that is asked", lambda: one(driver, "#confirm").is_displayed())
        one(driver, "#confirm-no").click()
        until("no is no", lambda: not one(driver, "#confirm").is_displayed())
        assert said() == ""
        go()
        one(driver, "#confirm-yes").click()
        until("all is purged", lambda: said() == "cache main: purged everything")
        one(driver, "#purge .close").click()
        until("it is counted", lambda: facts()["Purges"] == "3 since the start")
        until("the events say it", lambda: "cache main: purged everything, by the operator, on the status page from 127.0.0.1" in text(driver, "#event-list"))
        complaints = [it["message"] for it in driver.get_log("browser") if it["level"] == "SEVERE"]
        # The wrong token and the mistake are all that there is to complain about.
        assert all("401" in it or "400" in it for it in complaints), complaints


def limits(url):
    with browser() as driver:
        open_page(driver, url)
        cell = lambda at: text(driver, f"#limit-table tbody td:nth-child({at})")
        until("requests are refused", lambda: number(cell(5)) > 10)
        until("some have passed", lambda: number(cell(3)) >= 5)
        assert cell(2) == "5/s by client; 100 in flight by {route}", cell(2)
        until("keys are counted", lambda: re.fullmatch(r"[12]/1,008", cell(7).replace(" ", "")), limit=20)
        assert not one(driver, "#caches").is_displayed()
        assert_no_complaints(driver)


def caches_without_token(url):
    with browser() as driver:
        open_page(driver, url)
        until("nothing was asked", lambda: text(driver, ".cache .health") == "not asked in the last minute")
        one(driver, ".cache .danger").click()
        until("it says what is missing", lambda: "token_file" in text(driver, "#purge"))
        assert not one(driver, "#purge-form").is_displayed()
        assert_no_complaints(driver)


def overflow(driver):
    return driver.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")


def phone(url):
    with browser(390, 844, phone=True) as driver:
        open_page(driver, url)
        until("nothing is wider than the phone", lambda: overflow(driver) <= 0, limit=3)
        one(driver, ".upstream .open").click()
        until("the endpoint is shown", lambda: one(driver, "#endpoint").is_displayed())
        assert overflow(driver) <= 0
        box = one(driver, "#endpoint").rect
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390, box
    light = lambda driver: driver.execute_script(
        "return getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)[0]"
    )
    with browser(dark=True) as driver:
        open_page(driver, url)
        assert light(driver) < 60
        one(driver, "#theme").click()
        until("it is light", lambda: light(driver) > 200)
        driver.refresh()
        until("and stays so", lambda: light(driver) > 200)
    with browser() as driver:
        open_page(driver, url)
        assert light(driver) > 200
        assert overflow(driver) <= 0


def hostile(url, name):
    with browser() as driver:
        open_page(driver, url)
        names = lambda: [it.text for it in driver.find_elements(By.CSS_SELECTOR, ".upstream .open")]
        until("the name is shown as it is", lambda: f"unix:/tmp/{name}" in names())
        until("so is the probe's answer", lambda: "<script>" in text(driver, "#upstreams"))
        until("so is the event", lambda: name in text(driver, "#event-list"))
        driver.find_elements(By.CSS_SELECTOR, ".upstream .open")[1].click()
        until("so is the endpoint", lambda: name in text(driver, "#endpoint-name"))
        assert "taken" not in driver.title
        assert not driver.find_elements(By.CSS_SELECTOR, "body img")
        assert len(driver.find_elements(By.CSS_SELECTOR, "script")) == 1
        # Where it did get in somewhere, the policy would keep it from running.
        driver.execute_script(
            "const it = document.createElement('div');"
            "it.innerHTML = '<img src=x onerror=\"document.title=1\">'; document.body.append(it)"
        )
        until("the policy holds", lambda: any("Content Security Policy" in it["message"] for it in driver.get_log("browser")))
        assert driver.title != "1"


WATCH_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((it) => window.longTasks.push(it.duration)))
  .observe({ type: "longtask", buffered: true });
"""
# From the navigation to the first row in the document.
WATCH_ROWS = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("tbody tr")) return;
  window.rowsAt ??= performance.now();
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });
"""


# What a table of a thousand rows costs this browser on this machine, in ms.
LAY_OUT_A_TABLE = """
const begun = performance.now();
const table = document.createElement("table");
for (let row = 0; row < 1000; row++) {
  const cells = table.insertRow();
  for (let cell = 0; cell < 12; cell++) cells.insertCell().textContent = `${row} of ${cell}`;
}
document.body.append(table);
table.getBoundingClientRect();
table.remove();
return performance.now() - begun;
"""


def thousand(url):
    with browser() as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH_TASKS + WATCH_ROWS})
        loads = []
        # The best of three: others work on this machine too.
        for _ in range(3):
            open_page(driver, url)
            loads.append(until("there are rows", lambda: driver.execute_script("return window.rowsAt")))
        print("rows after", [round(it) for it in loads], "ms", file=sys.stderr)
        assert min(loads) < 1000, loads
        assert len(driver.find_elements(By.CSS_SELECTOR, "tbody tr .open")) == 25

        def quietest(seconds):
            """The second's longest task in the quietest but one: others work on this machine too."""
            longest = []
            for _ in range(seconds):
                driver.execute_script("window.longTasks = []")
                time.sleep(1)
                longest.append(max(driver.execute_script("return window.longTasks"), default=0))
            print("longest tasks", [round(it) for it in longest], "ms", file=sys.stderr)
            return sorted(longest)[1]

        until("the rate is shown", lambda: number(text(driver, "#rate")) > 10)
        assert quietest(5) < 200
        one(driver, ".more").click()
        rows = "return document.querySelectorAll('.upstream tbody tr').length"
        until("all are there", lambda: driver.execute_script(rows) == 1000)
        longest = quietest(5)
        table = min(driver.execute_script(LAY_OUT_A_TABLE) for _ in range(5))
        print("a table takes", round(table), "ms", file=sys.stderr)
        # The machine is slower at times: then a plain table takes longer as well.
        assert longest < max(200, 2 * table)
        find = one(driver, ".tools input")
        find.send_keys("127.1.3.7:")
        until("one is found", lambda: driver.execute_script(rows) == 1)
        assert_no_complaints(driver)


def lost(url):
    with urllib.request.urlopen(url + "status.json") as answer:
        pid = json.load(answer)["pid"]
    with browser() as driver:
        open_page(driver, url)
        os.kill(pid, signal.SIGSTOP)
        try:
            until("the page says so", lambda: "No update for" in text(driver, "#stale"))
        finally:
            os.kill(pid, signal.SIGCONT)
        until("it goes on", lambda: not one(driver, "#stale").is_displayed())


CASES = [figures, drain, broken, some_out, all_out, counted, errors, row, first_probe, queue, caches, limits, caches_without_token, widths, phone, hostile, thousand, lost]

if __name__ == "__main__":
    case = {it.__name__: it for it in CASES}[sys.argv[1]]
    case(*sys.argv[2:])
