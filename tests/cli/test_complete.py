"""Completion, as shells ask for it."""

import shutil
import subprocess

import pytest

from saccade.cli.complete import candidates
from tests.cli.program import called, environment, installed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], ["train"]),
        (["train", "qui"], ["quick", "quick_solar"]),
        (["train", "quick", "--ep"], ["--epochs"]),
        (["train", "quick", "--model", "linglo_na"], ["linglo_nano"]),
        (["train", "quick", "--set", "loop.ba"], ["loop.batch=", "loop.baseline="]),
        (["train", "quick", "--set", "a=1", "loop.se"], ["loop.seed="]),
        (["show", "linglo_na"], ["linglo_nano"]),
        (["show", "qna_table4_44"], ["qna_table4_4440_0032", "qna_table4_4470_0002",
                                     "qna_table4_4450_0022", "qna_table4_4430_0042",
                                     "qna_table4_4410_0062"]),
        (["bench", "linglo_nano", "qna_na"], ["qna_nano"]),
        (["export", "x", "--to", ""], ["onnx", "torch", "aot", "hub"]),
        (["eval", "x", "--split", ""], ["val", "train", "tune"]),
        (["paper", ""], ["linglo", "qna", "sasa"]),
        (["help", "res"], ["resume"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["predict", "a"], []),
        (["nothing", ""], []),
    ],
)  # fmt: skip
def test_candidates(words, expected):
    assert sorted(candidates(words)) == sorted(expected)


def test_table_rows_are_offered_once_they_are_begun():
    assert not [name for name in candidates(["show", "qna"]) if "_table" in name]


def test_runs_are_offered_with_the_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "recipe.json").touch()
    assert candidates(["eval", "runs/"]) == ["runs/mine"]


BASH = """
source <({saccade} completion bash)
complete -p saccade >/dev/null || exit 3
for line in "saccade train qui" "saccade show linglo_na" "saccade train quick --see" "saccade view pho"; do
    COMP_WORDS=($line) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
    _saccade {saccade} 2>/dev/null
    echo "${{COMPREPLY[*]}}" | tr '\\n' ' '
    echo
done
"""  # noqa: E501
ZSH = """
compdef() {{ print defined $*; }}
source <({saccade} completion zsh)
compadd() {{ while [[ $1 == -* ]]; do shift; done; print -l $@; }}
_files() {{ print files; }}
for line in "saccade train qui" "saccade view pho"; do
    words=({saccade} ${{${{=line}}[2,-1]}}) CURRENT=3
    _saccade
done
"""
FISH = """
{saccade} completion fish | source
complete -C "{saccade} train qui"
"""


@pytest.mark.parametrize(
    ("shell", "program", "answer"),
    [
        ("bash", BASH, [["quick", "quick_solar"], ["linglo_nano"], ["--seed"], ["photo.jpg"]]),
        ("zsh", ZSH, [["defined", "_saccade", "saccade"], ["quick"], ["quick_solar"], ["files"]]),
        ("fish", FISH, [["quick"], ["quick_solar"]]),
    ],
)
def test_in_a_shell(shell, program, answer, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    (tmp_path / "photo.jpg").touch()
    script = installed(tmp_path / "bin")
    path = environment()["PATH"]
    result = subprocess.run(
        [shell, "-c", program.format(saccade="saccade")], capture_output=True, text=True,
        cwd=tmp_path, env=environment(PATH=f"{script.parent}:{path}"),
    )  # fmt: skip
    assert [line.split() for line in result.stdout.splitlines()] == answer, result.stderr


def test_it_is_quick(tmp_path):
    times = []
    for _ in range(3):
        words = ["--complete", "train", "quick", "--model", ""]
        result, seconds = called(installed(tmp_path), *words, env=environment(SHOW_TORCH="1"))
        assert "linglo_nano" in result.stdout
        assert result.stderr == "False\n"
        times.append(seconds)
    assert min(times) < 0.3
