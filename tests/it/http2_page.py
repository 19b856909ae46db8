"""Loads a page with images by HTTP/2:

    http2_page.py URL IMAGES

It fails by an exception, unless every image is shown and everything came by HTTP/2.
"""

import sys

from chromium import browser

LOOK = """
const widths = [...document.images].map((it) => it.naturalWidth);
const entries = [
    ...performance.getEntriesByType("navigation"),
    ...performance.getEntriesByType("resource").filter((it) => it.name.endsWith(".svg")),
];
return { widths, protocols: entries.map((it) => it.nextHopProtocol) };
"""

url, images = sys.argv[1], int(sys.argv[2])
with browser(trusts_anybody=True) as driver:
    driver.get(url)
    seen = driver.execute_script(LOOK)
    assert seen["widths"] == list(range(1, images + 1)), seen
    assert seen["protocols"] == ["h2"] * (images + 1), seen
    said = [it for it in driver.get_log("browser") if "favicon" not in it["message"]]
    assert not said, said
