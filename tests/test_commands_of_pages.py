"""Every command that a page shows, with every option, is run as written or quoted from a caller.

The test of a page runs its bash blocks as written. Other blocks contain placeholders, or take long:
their program, subcommand and each option must be in a bash block, or in a line that is quoted here
of a test, a script or a workflow: it must be there, and whether it runs is up to that file.
The same holds for commands in sentences. An option alone in a sentence must be one of a command.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from npu_scaffold import cli
from pages import BLOCK
from support import ROOT

RUN = {
    "AGENTS.md": "tests/test_agents.py",
    "docs/commands.md": "tests/test_commands_page.py",
    "docs/deploy.md": "tests/test_deploy.py",
    "docs/isa-guide.md": "tests/test_isa.py",
    "docs/port-guide.md": "tests/test_port_guide.py",
    "template/AGENTS.md.jinja": "tests/test_port_guide.py",
}
"""Pages whose bash blocks a test runs, and the test."""
PAGES = [
    ROOT / name
    for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md")
    + ("template/README.md.jinja", "template/AGENTS.md.jinja", "template/_catalog/README.md")
] + sorted((ROOT / "docs").rglob("*.md"))

BACKEND, WORKBENCH = (f"template/engine/{wing}/tests" for wing in ("backend", "workbench"))
QUOTED = {
    "make build/venv/ready": (".ci/run", "make build/venv/ready"),
    "make reference": ("tests/test_reference.py", '"reference", "--write"'),
    "make demo": (".ci/run", "make demo"),
    "make docs": (".ci/run", "make docs"),
    "make test": (".ci/run", "make test"),
    "tvm_x tune": ("tests/test_isa.py", '"tune", "tuned.json"'),
    "tvm_x tune --trials": ("tests/test_isa.py", '"--trials"'),
    "tvm_acme_npu.engine.workbench.isa_emulator.shares": (
        "tests/test_isa.py",
        "isa_emulator.shares",
    ),
    "tvm_acme_npu.engine.workbench.isa_emulator.shares --trials": (
        "tests/test_isa.py",
        'module, "--trials"',
    ),
    "engine.backend.isa.cpp": ("tests/test_isa.py", '"engine.backend.isa.cpp"'),
    "copier copy --vcs-ref": ("Makefile", "--vcs-ref HEAD"),
    "copier copy --data-file": ("tests/test_answers.py", "--data-file"),
    "copier update": ("tests/test_update.py", "run_update("),
    "copier update --defaults": ("tests/test_update.py", "defaults=True"),
    "copier update -d": ("tests/test_update.py", "data="),
    "npu-scaffold new": ("tests/test_generator.py", 'main(["new"'),
    "npu-scaffold new --answers": ("tests/test_generator.py", '"--answers"'),
    "npu-scaffold upgrade": ("tests/test_upgrade.py", '"upgrade"'),
    "npu-scaffold upgrade -d": ("tests/test_upgrade.py", '"-d"'),
    "npu-scaffold upgrade --dry-run": ("tests/test_upgrade.py", '"--dry-run"'),
    "npu-scaffold upgrade --template": ("tests/test_upgrade.py", '"--template"'),
    "npu-scaffold release": ("tests/test_release_command.py", '["release", "0.2.0"'),
    "npu-scaffold release --tags": ("tests/test_release_command.py", '["release", "--tags"'),
    "npu-scaffold release --template": (
        "tests/test_release_command.py",
        '["release", "--tags", "--template"',
    ),
    "npu-scaffold docs --write": ("tests/test_docs.py", '["docs", "--write"'),
    "npu-scaffold docs --result": ("tests/test_docs.py", '"--result"'),
    "npu-scaffold graft": ("tests/test_graft.py", 'main(["graft"'),
    "npu-scaffold graft --backend": ("tests/test_graft.py", '"--backend"'),
    "npu-scaffold ungraft": ("tests/test_graft.py", 'main(["ungraft"'),
    "pip install --no-build-isolation": ("tests/test_backends.py", '"--no-build-isolation"'),
    "pip install -C": ("tests/test_backends.py", '"-C", "editable.rebuild=true"'),
    "pip install -e": ("tests/test_backends.py", '"-e", project'),
    "pip install --editable": (
        "Makefile",
        "install --quiet --disable-pip-version-check --editable",
    ),
    "pip install --group": ("template/.github/workflows/ci.yml.jinja", "pip install --group lint"),
    "pytest -m": ("tests/test_reference_tests.py", '"-m", "thorough or not thorough"'),
    "report_picture.py": ("tests/test_reference_models.py", "docs/report_picture.py"),
    "tvm_x COMMAND": (f"{WORKBENCH}/test_commands.py", '"--help"'),
    "tvm_x COMMAND --help": (f"{WORKBENCH}/test_commands.py", '"--help"'),
    "tvm_x compare --profiles": (
        f"{WORKBENCH}/test_commands.py",
        '"--profiles"',
    ),
    "tvm_x compile --calibration": ("tests/test_skeletons.py", '"--calibration", "data.npz"'),
    "tvm_x compile --report": (
        f"{WORKBENCH}/test_commands.py",
        '"--report", known',
    ),
    "tvm_x profile --all": (f"{WORKBENCH}/test_commands.py", '"--all"'),
    "tvm_x profile --report": (
        f"{WORKBENCH}/test_commands.py",
        '"--report", known',
    ),
    "tvm_x profile --trace": (
        f"{WORKBENCH}/test_commands.py",
        '"--trace", trace',
    ),
    "tvm_x drift --record": (f"{WORKBENCH}/test_supported_tvm.py", '"--record"'),
    "tvm_x report --html": (
        f"{WORKBENCH}/test_commands.py",
        '"model.json", "--html", page',
    ),
    "tvm_x drift --record-importers": (
        f"{WORKBENCH}/test_supported_tvm.py",
        '"--record-importers"',
    ),
    "tvm_x run --verify": (f"{BACKEND}/test_verify.py", '"run", path, "--verify"'),
    "tvm_x report --all": (f"{WORKBENCH}/test_commands.py", '"--all"'),
    "tvm_x report --netron": (f"{BACKEND}/test_onnx_report.py", '"--netron"'),
    "tvm_x report --option": ("tests/test_ethosu.py", '*integers, "--option"'),
    "tvm_x run --quantize": ("tests/test_ethosu.py", '("run", demo / "digits.onnx", *integers)'),
    "tvm_x profile --quantize": (
        "tests/test_ethosu.py",
        '("profile", demo / "digits.onnx", *integers)',
    ),
    "cp -r": ("tests/support.py", "copytree("),
    "git add -A": ("tests/test_adding_an_op.py", r"(git add -A && git commit -m "),
    "git clone": ("tests/test_graft.py", '"git", "clone"'),
    "git diff": ("tests/test_port_guide.py", '"git", "diff"'),
    "git status": ("tests/test_port_guide.py", '"git", "status"'),
    "cmake -G": ("tests/test_engine.py", "Ninja"),
    "cmake --target": ("tests/test_engine.py", "--target"),
    "ctest": ("tests/test_engine.py", '"ctest"'),
    "ctest --test-dir": ("tests/test_engine.py", '"--test-dir"'),
}
"""Command, or command and option -> a file, and words of it outside of comments."""

NOT_RUN = {
    "cibuildwheel": "needs Docker; tests/test_deploy.py runs its repair step",
    "tvm.relax.backend.contrib.acme_npu": "needs a build of TVM that contains the backend",
    "git diff --staged": "of Git, in sentences about what an upgrade has left",
    "git log": "of Git, in a sentence about the history of a file",
    "git log --follow": "the same",
    "git log -p": "the same",
    "git reset": "of Git, in sentences about how to undo an upgrade",
    "git reset --hard": "the same",
}
"""Commands that no test can run, and why."""

OF_OTHERS = {
    "-pedantic": "of GCC",
    "--exclude": "of auditwheel",
    "--trust": "of Copier; the pages say that it is not needed",
}
"""Options in sentences that belong to no command of a page."""

PROGRAMS = (
    r"(?:python3?|pip|pipx|pytest|copier|npu-scaffold|make|cmake|ctest|ruff|mypy|g\+\+"
    r"|git|cp|mkdir|auditwheel|qemu-\w+|cibuildwheel)"
)
WITH_SUBCOMMANDS = ["tvm_x", "pip", "copier", "npu-scaffold", "make", "ruff", "git", "auditwheel"]
_INDENTED = re.compile(r"(?:^|\n\n)((?: {4}[^\n]*\n)+)")
_INLINE = re.compile(r"(?<!`)`((?:[^`\n]|\n(?!\n))+)`(?!`)")


def lines_of(text: str) -> Iterator[tuple[str, str]]:
    """Find the command lines of a page, with the language of their block."""
    blocks = BLOCK.findall(text)
    rest = BLOCK.sub("", text)
    blocks += [("", block) for block in _INDENTED.findall(rest)]
    for language, block in blocks:
        if language in ("bash", "sh", ""):
            # A line continues after a backslash, and inside quotes.
            whole = re.sub(r"'[^'\n]*\n[^']*'", "''", block.replace("\\\n", " "))
            for line in whole.split("\n"):
                yield language, line.strip()
    yield from (("", code) for code in inline(text) if " " in code)


def inline(text: str) -> list[str]:
    """Find the code in the sentences of a page, which may continue on the next line."""
    rest = _INDENTED.sub("\n", BLOCK.sub("", text))
    return [" ".join(code.split()) for code in _INLINE.findall(rest)]


def forms_of(line: str) -> Iterator[str]:
    """Reduce a line to its commands and their options, without placeholders."""
    line = re.split(r"(?:^|\s{2,})#\s", line)[0]
    line = line.replace("{{ package }}", "tvm_x").replace("{{ upper_name }}", "X")
    for part in re.split(r"&&|\|\||[|;()]", line):
        try:
            words = shlex.split(part, comments=False)
        except ValueError:
            continue
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if not words:
            continue
        program = Path(words[0]).name.replace("python3", "python")
        if not re.fullmatch(PROGRAMS, program):
            continue
        rest = words[1:]
        if program == "pipx" and rest[:1] == ["run"]:
            program, rest = rest[1], rest[2:]
        if program == "python" and rest[:1] == ["-m"]:
            program = re.sub(r"^(tvm_(\w+|<name>)|<package>)$", "tvm_x", rest[1])
            rest = rest[2:]
        elif program == "python" and rest:
            program, rest = Path(rest[0]).name, rest[1:]
        name = program
        if program in WITH_SUBCOMMANDS and rest:
            name = f"{program} {rest.pop(0)}"
        yield name
        for word in rest:
            if re.match(r"--?[A-Za-z]", word):
                option = re.split(r"[=]", word)[0]
                option = re.sub(r"^-(C|D).*", r"-\1", option)
                # Git takes letters together.
                together = program == "git" and re.fullmatch(r"-[a-z]{2,}", option)
                yield from (f"{name} -{letter}" for letter in (option[1:] if together else ""))
                if not together:
                    yield f"{name} {option}"


@cache
def _without_comments(name: str) -> str:
    lines = (ROOT / name).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#"))


def _run_or_quoted() -> set[str]:
    found = set(NOT_RUN)
    for page in RUN:
        for language, line in lines_of((ROOT / page).read_text()):
            if language == "bash":
                found.update(forms_of(line))
    for form, (name, text) in QUOTED.items():
        assert text in _without_comments(name), f"{name} no longer has '{form}': no {text}"
        found.add(form)
    return found


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options(command)


def _known_options() -> set[str]:
    """Collect the options of all commands: ours, the backend's, and those that a test runs."""
    found = {*_options(cli._parser())}
    engine = ROOT / "template/engine"
    for pattern in ("backend/**/*.py", "workbench/**/*.py", "backend/examples/**/*.cc"):
        for source in engine.glob(pattern):
            found.update(re.findall(r'"(--[a-z][a-z0-9-]*)"', source.read_text()))
    found.update(form.split()[-1] for form in _run_or_quoted() if " -" in form)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_shows_is_run_or_quoted(page: Path) -> None:
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    if name not in RUN:
        assert "```bash" not in text, "only pages whose test runs them have bash blocks; write sh"
    known = _run_or_quoted()
    # In a sentence, a command of the backend stands without the program: `report --html FILE`.
    ours = {form.split()[1] for form in known if form.startswith("tvm_x ")}
    lines = [line for _, line in lines_of(text)]
    lines += [
        f"python -m tvm_x {code}"
        for code in inline(text)
        if code.split()[:1] and code.split()[0] in ours and " -" in code
    ]
    shown = {form: line for line in lines for form in forms_of(line)}
    missing = [f"{form}    in: {line}" for form, line in shown.items() if form not in known]
    assert not missing, "no page runs, and QUOTED does not have\n" + "\n".join(missing)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_in_sentences_exist(page: Path) -> None:
    known = _known_options()
    named = [code for code in inline(page.read_text()) if re.match(r"--?[A-Za-z]", code)]
    options = {re.sub(r"^(-[CD]).*", r"\1", re.split("[ =]", code)[0]): code for code in named}
    missing = [code for option, code in options.items() if option not in known | OF_OTHERS.keys()]
    assert not missing, "no command has these options:\n" + "\n".join(missing)
