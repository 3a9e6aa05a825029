"""The command npu-scaffold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import support
from npu_scaffold.cli import main


def test_new_renders_what_copier_renders(template: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.yml"
    answers.write_text("backend_name: acme_npu\nop_preset: custom\nops: [relu, conv2d]\n")
    ours, copiers = tmp_path / "ours", tmp_path / "copiers"
    command = ["new", str(ours), "--template", str(template), "--answers", str(answers)]
    assert main([*command, "-d", "license=MIT"]) == 0
    support.render(
        template,
        copiers,
        backend_name="acme_npu",
        op_preset="custom",
        ops=["conv2d", "relu"],
        license="MIT",
    )
    assert support.contents(ours) == support.contents(copiers)


def test_new_names_all_bad_answers_at_once_and_writes_nothing(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = tmp_path / "answers.yml"
    answers.write_text(
        "backend_name: Acme\nlicence: MIT\nlicense: GPL\nop_preset: custom\n"
        "ops: [conv_2d]\nbind_constants: flase\non_decline: crash\nauthor: ''\n"
    )
    out = tmp_path / "out"
    assert main(["new", str(out), "--template", str(template), "--answers", str(answers)]) == 1
    assert not out.exists()
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "licence",
        "backend_name",
        "author",
        "license",
        "ops",
        "bind_constants",
        "on_decline",
    ]
    assert "did you mean 'license'?" in lines[0]
    assert "'Acme' is not in snake case" in lines[1]
    assert "did you mean 'conv2d'?" in lines[4]
    assert "Traceback" not in said.err and "Validation error" not in said.err


@pytest.mark.parametrize(
    ("answers", "sentences"),
    [
        ("", ["must hold answers as a mapping"]),
        ("- a\n", ["must hold answers as a mapping"]),
        ("a: [\n", ["is not YAML"]),
        ("{}\n", ["backend_name: an answer is required."]),
        ("op_preset: custom\n", ["backend_name: an answer", "ops: an answer is required."]),
        ("backend_name: a\nselected_ops: [relu]\n", ["selected_ops: there is no such question"]),
        ("backend_name: a\nops: [relux]\n", ["ops: 'relux' is not an op"]),
        (
            "backend_name: a\nops: [relu6, relu, Gemm]\n",
            [
                "ops: 'relu6' is not an op of the catalogue (did you mean 'clip'?), "
                "nor is 'Gemm' (did you mean 'matmul'?). It has matmul, "
            ],
        ),
        ("backend_name: a\nops: relu\n", ["ops must be a list"]),
        ("backend_name: a\nops: []\n", ["ops must name at least one op"]),
        ("backend_name: a\nop_preset: cnn\nops: [relu]\n", ["op_preset cannot be cnn; leave one"]),
        ("backend_name: a\nop_preset: cmn\nops: [relux]\n", ["op_preset: 'cmn'", "ops: 'relux'"]),
        ("backend_name: a\nop_preset: custom\nops: relu\n", ["ops must be a list"]),
        ("backend_name: [a]\nclass_name: b\n", ["backend_name: ", "class_name: 'b' is not"]),
    ],
)
def test_new_says_what_is_wrong_with_an_answers_file(
    template: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answers: str,
    sentences: list[str],
) -> None:
    file = tmp_path / "answers.yml"
    file.write_text(answers)
    out = tmp_path / "out"
    assert main(["new", str(out), "--template", str(template), "--answers", str(file)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(sentences), lines
    for line, sentence in zip(lines, sentences, strict=True):
        assert sentence in line
    assert not out.exists()


def test_new_takes_a_list_of_ops_for_a_choice(template: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.yml"
    answers.write_text("backend_name: acme_npu\nops: [relu, conv2d]\n")
    out = tmp_path / "out"
    assert main(["new", str(out), "--template", str(template), "--answers", str(answers)]) == 0
    assert support.answers(out)["ops"] == ["conv2d", "relu"]


def test_new_names_the_versions_that_the_template_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template, out = tmp_path / "template", tmp_path / "out"
    support.copy_template(template)
    command = ["new", str(out), "--template", str(template), "-d", "backend_name=acme_npu"]
    command += ["-d", "op_preset=custom", "-d", "ops=[relu]"]

    def refusal(*more: str) -> str:
        assert main([*command, *more]) == 1
        assert not out.exists()
        (line,) = capsys.readouterr().err.splitlines()
        return line

    def git(*arguments: str) -> None:
        support.run("git", *arguments, cwd=template)

    refused = refusal("--vcs-ref", "v1.0.0")
    assert "is not a Git repository, so it has no version 'v1.0.0'" in refused
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "Start")
    assert "has no version 'nope', and no tags" in refusal("--vcs-ref", "nope")
    for tag in ("v1.9.0", "v1.10.0"):
        git("tag", tag)
    for wrong in ("nope", "", "--all", "v1.9.0^{tree}"):
        line = refusal(f"--vcs-ref={wrong}")
        assert f"has no version '{wrong}'" in line
        assert "its tags are v1.10.0, v1.9.0." in line
    assert "did you mean 'v1.9.0'?" in refusal("--vcs-ref", "v1.9.1")
    assert main([*command, "--vcs-ref", "v1.9.0"]) == 0


def test_new_leaves_a_directory_with_files_alone(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("mine")
    command = ["new", str(tmp_path), "--template", str(template), "-d", "backend_name=acme_npu"]
    assert main(command) == 1
    assert "is not an empty directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_new_reports_a_missing_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", str(tmp_path / "out"), "--template", str(tmp_path)]) == 1
    assert "Give a checkout of npu-scaffold with --template" in capsys.readouterr().err
    assert main(["new", str(tmp_path / "out"), "--answers", str(tmp_path / "none.yml")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_new_leaves_an_empty_directory_empty_when_the_template_is_broken(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, out = tmp_path / "broken", tmp_path / "out"
    support.copy_template(broken)
    (broken / "template/zzz.txt.jinja").write_text("{{ no_such_variable }}")
    out.mkdir()
    command = ["new", str(out), "--template", str(broken), "-d", "backend_name=acme_npu"]
    assert main(command) == 1
    assert "template itself is broken" in capsys.readouterr().err
    assert list(out.iterdir()) == []


def test_ops_shows_the_catalogue(
    catalog: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["op", "Relax"]
    assert [line.split()[0] for line in lines[1:]] == list(catalog)
    assert main(["ops", "--json"]) == 0
    # Compared as text: cases contain NaN, which differs from itself.
    assert json.dumps(json.loads(capsys.readouterr().out)) == json.dumps(catalog)


def test_a_closed_pipe_ends_a_command_quietly() -> None:
    command = [sys.executable, "-m", "npu_scaffold", "ops", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"{\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("new", "ops", "reference"))
