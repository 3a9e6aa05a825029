"""Makes the picture of docs/report.md: the graph of ResNet-18, in Chromium.

Usage: ``python docs/report_picture.py BACKEND_NAME``, in an environment with the backend, torch and
selenium; chromium and chromedriver are installed.
"""

import importlib
import shutil
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from selenium import webdriver
from selenium.webdriver.chrome.service import Service


def main() -> None:
    """Partition the model, write the page, and take the picture."""
    name = sys.argv[1]
    backend = importlib.import_module(f"tvm_{name}")
    networks = importlib.import_module(f"tvm_{name}.engine.conformance.torch_networks")
    build = partial(networks.ResNet, (64, 128, 256, 512), 1000)
    model, (x,) = networks.make(build, lambda: [torch.randn(1, 3, 224, 224)])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(model, (x,))
    module = backend.from_exported_program(exported, unwrap_unit_return_tuple=True)
    partitioned = getattr(backend, f"partition_for_{name}")(module)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        report = backend.offload_report(partitioned)
        # Without the paths of this machine.
        ops = (replace(op, origin=replace(op.origin, location="")) for op in report.ops)
        replace(report, ops=tuple(ops)).to_html(page, title="ResNet-18")
        options = webdriver.ChromeOptions()
        for flag in ("headless", "no-sandbox", "disable-gpu", "window-size=1200,900"):
            options.add_argument(f"--{flag}")
        options.add_argument(f"--user-data-dir={folder}/chromium")
        options.binary_location = shutil.which("chromium") or ""
        browser = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        browser.get(page.as_uri())
        browser.find_element("id", "tab-graph").click()
        browser.find_element("css selector", "[data-op='4']").click()
        browser.save_screenshot(str(Path(__file__).parent / "report-graph.png"))
        browser.quit()


if __name__ == "__main__":
    main()
