"""Chromium for tests, without a screen."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

_MISSING = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
if importlib.util.find_spec("selenium") is None:
    _MISSING.append("selenium")
NEEDS_BROWSER = pytest.mark.skipif(
    bool(_MISSING), reason=f"needs {', '.join(_MISSING)}: install chromium, chromium-driver"
)
_FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "window-size=1000,760",
)


def open_browser(profile: Path) -> Any:
    """Start Chromium with a fresh profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*_FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
