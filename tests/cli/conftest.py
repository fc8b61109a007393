import pytest

from saccade import cli
from saccade.cli.console import console


@pytest.fixture
def run(capsys, monkeypatch):
    """A command, as typed: its exit code and all that it prints."""

    def call(*arguments):
        monkeypatch.setattr(console, "width", 120)
        try:
            cli.main(list(arguments))
            code = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call
