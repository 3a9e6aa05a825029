"""Maps a backend's files to their places in a checkout of TVM, and adapts their content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .errors import ScaffoldError
from .render import read_answers, tracked_files

_LICENCE = """\
Licensed to the Apache Software Foundation (ASF) under one
or more contributor license agreements.  See the NOTICE file
distributed with this work for additional information
regarding copyright ownership.  The ASF licenses this file
to you under the Apache License, Version 2.0 (the
"License"); you may not use this file except in compliance
with the License.  You may obtain a copy of the License at

  http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing,
software distributed under the License is distributed on an
"AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY
KIND, either express or implied.  See the License for the
specific language governing permissions and limitations
under the License.
""".splitlines()


# TVM's tests/lint/check_asf_header.py requires it in files of these kinds.
_IN_C = "\n".join(["/*", *(f" * {line}".rstrip() for line in _LICENCE), " */", ""])
_IN_PYTHON = "\n".join([*(f"# {line}".rstrip() for line in _LICENCE), ""])
_IN_HTML = "\n".join([*(line and f"<!--- {line} -->" for line in _LICENCE), ""])
_HEADERS = {
    **dict.fromkeys((".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".m", ".mm"), _IN_C),
    **dict.fromkeys((".py", ".pyi", ".cmake", ".toml", ".yml", ".yaml", ".sh"), _IN_PYTHON),
    **dict.fromkeys((".md", ".html", ".xml"), _IN_HTML),
}
_SPDX = re.compile(r"^.*SPDX-License-Identifier: *(?P<licence>.*?) *(?:\*/|-->)?$", re.MULTILINE)

_CPP = {".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".inc", ".m", ".mm", ".cmake"}
_CPP_FOLDERS = ("vendor/driver/", "vendor/lowerings/")

# The folders of the engine's C++.
_COMPILER = ("backend/codegen/", "backend/lowerings/")
_RUNTIME = ("backend/common/", "backend/include/", "backend/runtime/", "workbench/emulator/")
# What serves only the wheel.
_TESTS = ("tests/", "backend/tests/", "workbench/tests/")
_OF_THE_WHEEL = ("backend/examples/", "workbench/benchmarks/", *(f"{name}cpp/" for name in _TESTS))

_README = """\
{header}
# {class_name}: {description}

A backend for Relax, made by npu-scaffold, whose command `graft` put it here.

| where | what |
|---|---|
| `{python}` | what may go to the NPU (`patterns.py`, `vendor/capabilities.py`), passes, reports |
| `{compiler}` | the codegen, and a lowering for each op |
| `{runtime}` | the runtime, the driver interface, an emulator behind it |
| `cmake/modules/contrib/{class_name}.cmake` | the build |
| `{tests}` | the tests |

## Build

```bash
cmake -S . -B build -DUSE_{upper}_CODEGEN=ON -DUSE_{upper}_RUNTIME=ON
cmake --build build
```

Both are linked into TVM's own libraries. The drivers are libraries beside them:
`libtvm_{name}_emulator`, and the vendor's. `USE_{upper}_DRIVER` says for which of
them programs are (`emulator` or `vendor`), else NPU_VENDOR_DEFAULT_DRIVER of vendor.cmake.

## Use

```python
from tvm.relax.backend.contrib import {name}

print({name}.offload_report({name}.partition_for_{name}(mod)))
executable = {name}.compile_for_{name}(mod)
```

`python -m {module} --help` lists the commands, and `check` says whether the backend works here.

## Test

```bash
python -m pytest {tests}
```
"""


@dataclass(frozen=True)
class Backend:
    """A rendered backend, and its names."""

    root: Path
    name: str
    class_name: str
    description: str
    licence: str

    @classmethod
    def open(cls, root: Path) -> Backend:
        """Read what a backend is called.

        Parameters
        ----------
        root
            The directory of the backend.

        Returns
        -------
        Backend
            Its names.

        Raises
        ------
        ScaffoldError
            The directory is not a rendered backend, or a part of it is missing.
        """
        answers_file = root / ".copier-answers.yml"
        if not answers_file.is_file():
            raise ScaffoldError(
                f"{root} has no {answers_file.name}: it is not a backend that npu-scaffold made. "
                "Give the directory of one with --backend."
            )
        answers = read_answers(answers_file)
        values = {}
        for key in ("backend_name", "class_name", "license"):
            if not isinstance(answers.get(key), str):
                raise ScaffoldError(f"{answers_file} has no {key}: npu-scaffold did not make it.")
            values[key] = answers[key]
        if answers.get("driver") == "isa":
            raise ScaffoldError(
                f"{root} has an instruction set of its own, whose compiler and emulator are not "
                "built in TVM's tree. Build the backend as a package: pip install."
            )
        backend = cls(
            root,
            values["backend_name"],
            values["class_name"],
            str(answers.get("description", "")).rstrip("."),
            values["license"],
        )
        for needed in (f"python/{backend.package}/_backend.py", "engine/engine.cmake"):
            if not (root / needed).is_file():
                raise ScaffoldError(
                    f"{root} has no {needed}. Upgrade the backend first: npu-scaffold upgrade."
                )
        if "NPU_IN_TREE" not in (root / "engine/engine.cmake").read_text(encoding="utf-8"):
            raise ScaffoldError(
                f"The engine in {root} is of a release that cannot be built in TVM's tree. Upgrade "
                "the backend first: npu-scaffold upgrade."
            )
        return backend

    @property
    def package(self) -> str:
        """The Python package of the wheel."""
        return f"tvm_{self.name}"

    @property
    def upper(self) -> str:
        """The part between ``USE_`` and ``_CODEGEN`` in the names of options."""
        return self.name.upper()

    @property
    def module(self) -> str:
        """The Python package in TVM."""
        return f"tvm.relax.backend.contrib.{self.name}"

    @property
    def python(self) -> str:
        """The folder of the Python package in TVM."""
        return f"python/tvm/relax/backend/contrib/{self.name}/"

    @property
    def compiler(self) -> str:
        """The folder of the codegen and of the lowerings in TVM."""
        return f"src/relax/backend/contrib/{self.name}/"

    @property
    def runtime(self) -> str:
        """The folder of the rest of the C++ in TVM."""
        return f"src/runtime/extra/contrib/{self.name}/"

    @property
    def tests(self) -> str:
        """The folder of the tests in TVM."""
        return f"tests/python/contrib/{self.name}/"

    def place(self, path: str) -> str:
        """Return where a file of the backend goes.

        Parameters
        ----------
        path
            The file, from the directory of the backend.

        Returns
        -------
        str
            The file, from the top of TVM's checkout; empty if it only serves the wheel.
        """
        suffix = Path(path).suffix
        if path.startswith("vendor/"):
            if path.startswith("vendor/tests/"):
                folder, rest = f"{self.tests}vendor/", path.removeprefix("vendor/tests/")
            elif suffix in _CPP or path.startswith(_CPP_FOLDERS):
                folder, rest = self.runtime, path
            else:
                folder, rest = self.python, path
            return folder + rest
        places = {
            f"python/{self.package}/": self.python,
            **{f"engine/{start}": self.compiler + start.split("/", 1)[1] for start in _COMPILER},
            **{f"engine/{start}": self.runtime + start.split("/", 1)[1] for start in _RUNTIME},
            **{f"engine/{start}": "" for start in _OF_THE_WHEEL},
            "engine/engine.cmake": f"{self.runtime}engine.cmake",
            **{f"engine/{start}": self.tests for start in _TESTS},
            "engine/conftest.py": f"{self.tests}conftest.py",
            "src/backend.h": f"{self.runtime}backend.h",
            "cmake/": "cmake/",
        }
        if path.startswith("engine/") and (path.count("/") > 1 or suffix == ".py"):
            places["engine/"] = f"{self.python}engine/"
        for start, place in places.items():
            if path.startswith(start):
                return place and self._allowed(place + path.removeprefix(start))
        return ""

    def files(self) -> dict[str, bytes]:
        """Return the files with their content in TVM's checkout.

        Returns
        -------
        dict
            Path from the top of the checkout -> content.

        Raises
        ------
        ScaffoldError
            A file has a licence that TVM does not accept, or an unknown one.
        """
        result = {}
        foreign = []
        for path, content in sorted(tracked_files(self.root).items()):
            place = self.place(path)
            # TVM has no marker of types.
            if not place or path.endswith("/py.typed"):
                continue
            try:
                text = content.decode()
            except UnicodeDecodeError:
                result[place] = content
                continue
            suffix = Path(place).suffix
            if suffix in _HEADERS:
                found = _SPDX.search(text[:400])
                licence = found["licence"] if found else self.licence
                if licence != "Apache-2.0":
                    foreign.append(f"{path} ({licence})")
                    continue
                text = _with_header(text, _HEADERS[suffix])
            if suffix not in _CPP:
                text = self._renamed(text)
            result[place] = text.encode()
        if foreign:
            more = f" and {len(foreign) - 5} more" if len(foreign) > 5 else ""
            raise ScaffoldError(
                "Files in TVM's tree are under the Apache License 2.0, and these are not: "
                f"{', '.join(foreign[:5])}{more}. If you may relicense it, put the backend under "
                "Apache-2.0: npu-scaffold upgrade . -d license=Apache-2.0, and change the first "
                "lines of the files in vendor/."
            )
        readme = _README.format(
            header=_IN_HTML.rstrip("\n"),
            class_name=self.class_name,
            description=self.description or "a backend for an NPU",
            name=self.name,
            upper=self.upper,
            module=self.module,
            python=self.python,
            compiler=self.compiler,
            runtime=self.runtime,
            tests=self.tests,
        )
        result[f"{self.python}README.md"] = readme.encode()
        return result

    def _allowed(self, path: str) -> str:
        """Change a file extension that TVM's check_file_type.py does not allow."""
        return f"{path}.txt" if path.endswith(".LICENSE") else path

    def _renamed(self, text: str) -> str:
        """Replace the name of the Python package by its name in TVM."""
        text = text.replace("dagre.LICENSE", "dagre.LICENSE.txt")
        text = text.replace(f"python/{self.package}/", self.python)
        return re.sub(rf"\b{self.package}\b", self.module, text)


def _with_header(text: str, header: str) -> str:
    """Replace the licence line with the ASF header."""
    lines = text.splitlines(keepends=True)
    start = lines[:1] if lines and lines[0].startswith("#!") else []
    rest = lines[len(start) :]
    at = next((i for i, line in enumerate(rest[:4]) if "SPDX-License-Identifier:" in line), None)
    if at is not None:
        del rest[at]
        if at < len(rest) and rest[at].strip() == "#":
            rest[at] = "\n"
    body = "".join(rest)
    gap = "" if not body or body.startswith(("\n", '"""')) else "\n"
    return "".join(start) + header + gap + body
