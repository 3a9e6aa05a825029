"""Makes the pictures of docs/report.md: the page of ResNet-18 in Chromium, float and int8.

Usage: ``python docs/report_picture.py BACKEND_NAME``, in an environment with the backend, torch,
onnx, onnxruntime and selenium; chromium and chromedriver are installed. It takes a minute.
"""

import importlib
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import onnx
import torch
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

DOCS = Path(__file__).parent
SHOTS = {
    "report-graph": ("float", "graph", "#canvas [data-op='0']"),
    "report-graph-int8": ("int8", "graph", "#canvas [data-op='3']"),
    "report-profile-int8": ("int8", "profile", None),
}
"""The pictures: which model, which tab, and what is clicked there."""


def main() -> None:
    """Compile both models, write their pages, and take the pictures."""
    name = sys.argv[1]
    backend = importlib.import_module(f"tvm_{name}")
    with tempfile.TemporaryDirectory() as folder:
        model = resnet(name, Path(folder) / "resnet18.onnx")
        images = [torch.randn(1, 3, 224, 224).numpy() for _ in range(4)]
        quantized = getattr(backend, f"quantize_for_{name}")(model, images)
        pages = {}
        for kind, source in (("float", model), ("int8", quantized)):
            pages[kind] = Path(folder) / f"{kind}.html"
            write_page(backend, name, source, pages[kind], f"ResNet-18, {kind}")
        take_pictures(pages, Path(folder))


def resnet(name: str, path: Path) -> onnx.ModelProto:
    """Return ResNet-18 with random weights."""
    networks = importlib.import_module(f"tvm_{name}.engine.workbench.conformance.torch_networks")
    build = partial(networks.ResNet, (64, 128, 256, 512), 1000)
    network, (x,) = networks.make(build, lambda: [torch.randn(1, 3, 224, 224)])
    torch.onnx.export(
        network, (x,), path, input_names=["images"], output_names=["scores"], dynamo=False
    )
    return onnx.load(path)


def write_page(backend, name: str, model: onnx.ModelProto, path: Path, title: str) -> None:
    """Write the page of a model with its report and its profile."""
    module = backend.from_onnx(model)
    partitioned = getattr(backend, f"partition_for_{name}")(module)
    executable = getattr(backend, f"compile_for_{name}")(module)
    report = backend.offload_report(partitioned)
    x = torch.randn(1, 3, 224, 224).numpy()
    profile = backend.profile(executable, x, report=report, calls=5)
    report.to_html(path, title=title, profile=profile.to_dict())


def take_pictures(pages: dict[str, Path], folder: Path) -> None:
    """Write the files of `SHOTS` beside this one."""
    options = webdriver.ChromeOptions()
    for flag in ("headless", "no-sandbox", "disable-gpu", "window-size=1200,900"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={folder}/chromium")
    options.binary_location = shutil.which("chromium") or ""
    browser = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    for shot, (kind, tab, clicked) in SHOTS.items():
        browser.get(pages[kind].as_uri())
        browser.find_element("id", f"tab-{tab}").click()
        if clicked is not None:
            browser.find_element("css selector", clicked).click()
        browser.save_screenshot(str(DOCS / f"{shot}.png"))
    browser.quit()


if __name__ == "__main__":
    main()
