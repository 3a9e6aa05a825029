"""The questions: what they accept, and their messages for what they do not."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import support
from npu_scaffold.template import read_questions
from support import ROOT

NAME = "acme_npu"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the questions, with nothing to render but the answers file."""
    return support.copy_questions(tmp_path_factory.mktemp("questions"))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({}, 'Question "backend_name" is required'),
        ({"backend_name": ""}, "needs a name"),
        ({"backend_name": "AcmeNPU"}, "'AcmeNPU' is not in snake case"),
        ({"backend_name": "acme-npu"}, "for example acme_npu"),
        ({"backend_name": "_acme"}, "must begin with a lower-case letter"),
        ({"backend_name": "acme_"}, "not in snake case"),
        ({"backend_name": "acme__npu"}, "not in snake case"),
        ({"backend_name": "2npu"}, "must begin with a lower-case letter"),
        ({"backend_name": "acmé"}, "not in snake case"),
        ({"backend_name": "acme\n"}, "not in snake case"),
        ({"backend_name": "a" * 31}, "at most 30"),
        ({"backend_name": ["acme"]}, "acme"),
        ({"backend_name": True}, "not in snake case"),
        ({"backend_name": "lambda"}, "Python or C++ reserves"),
        ({"backend_name": "match"}, "for example match_npu"),
        ({"backend_name": "namespace"}, "Python or C++ reserves"),
        ({"backend_name": "std"}, "Python or C++ reserves"),
        ({"backend_name": "tvm_acme"}, "leave that out: acme"),
        ({"backend_name": "tensorrt"}, "TVM uses already"),
        ({"backend_name": "ffi"}, "for example acme_ffi"),
        ({"backend_name": NAME, "class_name": "acmeNPU"}, "begin with an upper-case letter"),
        ({"backend_name": NAME, "class_name": "Acme_NPU"}, "for example AcmeNPU"),
        ({"backend_name": NAME, "class_name": "A" * 31}, "30 characters at most"),
        ({"backend_name": NAME, "class_name": "TensorRT"}, "TVM uses already"),
        ({"backend_name": NAME, "class_name": "None"}, "Python reserves"),
        ({"backend_name": NAME, "author": " "}, "author must not be empty"),
        ({"backend_name": NAME, "author": "A\nB"}, "author must be one line"),
        ({"backend_name": NAME, "author": "A\u202eB"}, "author must be one line"),
        ({"backend_name": NAME, "description": "x" * 201}, "at most 200 characters"),
        ({"backend_name": NAME, "license": "GPL"}, "'GPL' is not in ['Apache-2.0', 'MIT'"),
        ({"backend_name": NAME, "op_preset": "cmn"}, "'cmn' is not in ['everything', 'cnn'"),
        ({"backend_name": NAME, "op_preset": "custom"}, 'Question "ops" is required'),
        (
            {"backend_name": NAME, "op_preset": "custom", "ops": []},
            "at least one op, for example [conv2d, relu]",
        ),
        ({"backend_name": NAME, "op_preset": "custom", "ops": "relu"}, "ops must be a list"),
        ({"backend_name": NAME, "op_preset": "custom", "ops": 3}, "ops must be a list"),
        ({"backend_name": NAME, "op_preset": "custom", "ops": {"a": 1}}, "ops must be a list"),
        (
            {"backend_name": NAME, "op_preset": "custom", "ops": ["conv_2d"]},
            "did you mean 'conv2d'?",
        ),
        (
            {"backend_name": NAME, "op_preset": "custom", "ops": ["relu", "zzz"]},
            "is not an op of the catalogue. It has matmul,",
        ),
        ({"backend_name": NAME, "op_preset": "cnn", "ops": ["relu"]}, "leave one of them out"),
        ({"backend_name": NAME, "op_preset": "cnn", "ops": "[relu]"}, "leave one of them out"),
        ({"backend_name": NAME, "ops": []}, "at least one op, for example [conv2d, relu]"),
        ({"backend_name": NAME, "ops": "relu"}, "ops must be a list"),
        ({"backend_name": NAME, "ops": "[relu"}, "relu], not '[relu'."),
        ({"backend_name": NAME, "ops": ["conv_2d"]}, "did you mean 'conv2d'?"),
        ({"backend_name": NAME, "bind_constants": "flase"}, "either true or false, not 'flase'"),
        ({"backend_name": NAME, "on_decline": "crash"}, "'crash' is not in ['host', 'error']"),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, dict) else "",
)
def test_a_bad_answer_gives_a_clear_message_and_writes_nothing(
    template: Path, tmp_path: Path, answers: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        support.render(template, tmp_path / "out", **answers)
    assert not (tmp_path / "out").exists()


def test_the_command_line_names_a_bad_answer_in_its_last_line(
    template: Path, tmp_path: Path
) -> None:
    done = support.attempt(
        *(sys.executable, "-m", "copier", "copy", "--defaults", "-d", "backend_name=Acme"),
        *(template, tmp_path / "out"),
    )
    assert done.returncode != 0
    assert "'Acme' is not in snake case" in done.stdout.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_a_relative_path_of_the_template_is_warned_of(template: Path, tmp_path: Path) -> None:
    """Copier stores it as it is given, and looks for it in the folder of an update."""
    copy = (sys.executable, "-m", "copier", "copy", "--defaults", "-d", "backend_name=acme")
    relative = f"./{template.name}"
    done = support.attempt(*copy, relative, tmp_path / "out", cwd=template.parent)
    assert f"Updates would not find the template at '{relative}'" in done.stdout
    done = support.attempt(*copy, template, tmp_path / "other")
    assert "Updates would not" not in done.stdout


def test_only_the_name_must_be_given(
    template: Path, tmp_path: Path, catalog: dict[str, dict[str, Any]]
) -> None:
    answers = support.answers(support.render(template, tmp_path / "out", backend_name=NAME))
    assert answers["class_name"] == "AcmeNPU"
    assert answers["ops"] == list(catalog)
    assert answers["bind_constants"] is True
    assert answers["on_decline"] == "host"


def test_answers_come_from_the_command_line_and_from_a_file(template: Path, tmp_path: Path) -> None:
    data = tmp_path / "answers.yml"
    data.write_text("backend_name: acme_npu\nop_preset: custom\nops: [relu, conv2d]\n")
    support.run(
        *(sys.executable, "-m", "copier", "copy", "--defaults", "-q", "--data-file", data),
        *("-d", "bind_constants=false", template, tmp_path / "out"),
    )
    answers = support.answers(tmp_path / "out")
    assert answers["ops"] == ["conv2d", "relu"], "in the order of the catalogue"
    assert answers["bind_constants"] is False


def test_a_list_of_ops_alone_is_a_choice_of_ones_own(template: Path, tmp_path: Path) -> None:
    support.run(
        *(sys.executable, "-m", "copier", "copy", "--defaults", "-q", "-d", "backend_name=acme"),
        *("-d", "ops=[relu, conv2d]", template, tmp_path / "out"),
    )
    answers = support.answers(tmp_path / "out")
    assert answers["ops"] == ["conv2d", "relu"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_the_questions_can_be_answered_at_a_terminal(template: Path, tmp_path: Path) -> None:
    dialogue = [
        ("Name of the backend", b"Acme"),
        ("not in snake case", b"\x7f\x7f\x7f\x7facme_npu\r"),
        ("Name in C++ and CMake", b"\r"),
        ("Vendor or author", b"\r"),
        ("One line about", b"\r"),
        ("Licence of what you write", b"\x1b[B\r"),
        ("Which ops", b"\x1b[A\r"),
        ("at least one", b" \r"),
        ("weights in the program", b"\r"),
        ("begin with", b"\r"),
        ("declines", b"\r"),
    ]
    main, end = pty.openpty()
    command = [sys.executable, "-m", "copier", "copy", str(template), str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        stdin=end,
        stdout=end,
        stderr=end,
        close_fds=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(end)
    shown = ""
    deadline = time.monotonic() + 120
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([main], [], [], 0.5)[0]:
                try:
                    shown += os.read(main, 65536).decode(errors="replace")
                except OSError:
                    break
            plain = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).split())
            if dialogue and dialogue[0][0] in plain:
                time.sleep(0.3)
                _, keys = dialogue.pop(0)
                shown = ""
                os.write(main, keys)
                if keys == b"Acme":
                    os.write(main, b"\r")
        assert not dialogue, f"waited for {dialogue[0][0]!r}, saw:\n{plain}"
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        os.close(main)
    answers = support.answers(tmp_path / "out")
    assert answers["backend_name"] == NAME
    assert answers["license"] == "MIT"
    assert answers["ops"] == ["matmul"]


def test_at_most_ten_questions_are_asked_and_each_explains_itself() -> None:
    questions = read_questions(ROOT)
    assert len(questions) <= 10
    for name, question in questions.items():
        assert question["help"].endswith((".", "?")) and len(question["help"]) > 40, name


def test_questions_that_select_files_have_no_default_that_could_delete_files() -> None:
    questions = read_questions(ROOT)
    assert "default" not in questions["backend_name"]
    assert questions["ops"]["default"] == "{{ UNSET }}"
    assert "'everything' if ops is undefined" in questions["op_preset"]["default"]


def test_nothing_in_the_template_needs_trust() -> None:
    text = (ROOT / "copier.yml").read_text()
    for key in ("_tasks", "_migrations", "_jinja_extensions", "_external_data"):
        assert not re.search(rf"^{key}\b", text, re.MULTILINE), key


@pytest.mark.parametrize(
    ("backend_name", "class_name"),
    [
        ("example_npu", "ExampleNPU"),
        ("poolside", "Poolside"),
        ("add_on", "AddOn"),
        ("npu2", "NPU2"),
        ("x", "X"),
        ("my_ai_dsp_v2", "MyAIDSPV2"),
        ("tpuish", "Tpuish"),
    ],
)
def test_the_class_name_follows_from_the_name_with_acronyms_in_capitals(
    template: Path, tmp_path: Path, backend_name: str, class_name: str
) -> None:
    tree = support.render(template, tmp_path / "out", backend_name=backend_name, ops=["relu"])
    answers = support.answers(tree)
    assert answers["class_name"] == class_name


def _reserved() -> set[str]:
    text = (ROOT / "template/_macros/names.jinja").read_text()
    lists = re.findall(r'set \w+ = "([^"]+)"\.split\(\)', text)
    assert len(lists) == 2
    return {word for words in lists for word in words.split()}


def test_all_words_of_python_and_cpp_are_reserved() -> None:
    import keyword

    words = {*keyword.kwlist, *keyword.softkwlist} - {"_"}
    assert words <= _reserved()
    assert {"class", "template", "co_await", "int", "xor", "std", "main"} <= _reserved()


def test_all_names_that_tvm_uses_are_reserved() -> None:
    pytest.importorskip("tvm")
    import pkgutil

    import tvm
    import tvm.relax.backend.contrib
    import tvm_ffi
    from tvm.target import Target

    functions = tvm_ffi.registry.list_global_func_names()
    names = {name.split(".")[-1] for name in functions if name.startswith("relax.ext.")}
    names |= {name.split(".")[1] for name in functions if name.startswith("device_api.")}
    names |= {name.split(".")[0] for name in functions if "." in name}
    names |= set(Target.list_kinds())
    names |= {module.name for module in pkgutil.iter_modules(tvm.__path__)}
    names |= {module.name for module in pkgutil.iter_modules(tvm.relax.backend.contrib.__path__)}
    names |= {module.name for module in pkgutil.iter_modules(tvm.contrib.__path__)}
    legal = {name for name in names if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)}
    # The wheel has patterns for it, but no backend; the reference backend is one.
    legal.discard("example_npu")
    # Registered by backends that are installed alongside TVM.
    legal = {name for name in legal if f"{name}.runtime.info" not in functions}
    assert legal - _reserved() == set()


def test_choices_are_only_ever_appended() -> None:
    """If a choice were removed, 'copier update' would silently fall back to the default."""
    copier_yml = (ROOT / "copier.yml").read_text().replace("!include", "")
    questions = yaml.safe_load(copier_yml)
    assert list(questions["license"]["choices"].values())[:4] == [
        "Apache-2.0",
        "MIT",
        "BSD-3-Clause",
        "LicenseRef-Proprietary",
    ]
    assert list(questions["op_preset"]["choices"].values())[:4] == [
        "everything",
        "cnn",
        "transformer",
        "custom",
    ]
    assert list(questions["on_decline"]["choices"].values())[:2] == ["host", "error"]
