"""Installs the tools of the admin page's tests: Chromium, and the accessibility checker
axe-core, which the Python package axe-playwright-python contains."""

import hashlib
import os
import shutil
import zipfile

from packages import ELF, SetupError, download, run, say

AXE = ELF / "axe.min.js"
AXE_PACKAGE = "axe-playwright-python==0.1.8"
# axe-core 4.12.1
AXE_SHA256 = "84494fec757e4710dc751c8d7a636e457f4532f08f85c86dc9070133fbff53bc"


def set_up_browser():
    """All other tests work without these tools, so no error here is fatal."""
    try:
        set_up_chromium()
        set_up_axe()
    except SetupError as error:
        say(f"SOME OR ALL BROWSER TESTS WILL BE SKIPPED: {error}")


def set_up_chromium():
    if shutil.which("chromium") and shutil.which("chromedriver"):
        say("Chromium: on the PATH")
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupError("chromium and chromedriver are missing; run: sudo apt-get install chromium chromium-driver")
    say("installing chromium and chromium-driver, for the tests of the admin page")
    run(["apt-get", "update", "-qq"])
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "chromium-driver"])


def set_up_axe():
    if AXE.exists():
        return
    with zipfile.ZipFile(download(AXE_PACKAGE)) as wheel:
        script = wheel.read("axe_playwright_python/axe.min.js")
    if hashlib.sha256(script).hexdigest() != AXE_SHA256:
        raise SetupError(f"axe.min.js of {AXE_PACKAGE} has another checksum than expected")
    part = AXE.with_suffix(".part")
    part.write_bytes(script)
    part.rename(AXE)
    say("axe-core: .elf/axe.min.js")
