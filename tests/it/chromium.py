"""A headless Chromium, driven by Debian's chromedriver."""

import contextlib

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ARGUMENTS = [
    "--headless=new",
    # It has no sandbox where it runs as root, as in a container.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
]


@contextlib.contextmanager
def browser(width=1280, height=900, dark=False, phone=False, trusts_anybody=False):
    """A browser with a window of this size, closed at the end. One that trusts anybody
    takes certificates of every issuer."""
    options = webdriver.ChromeOptions()
    options.accept_insecure_certs = trusts_anybody
    options.binary_location = "/usr/bin/chromium"
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_page_load_timeout(20)
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield driver
    finally:
        driver.quit()
