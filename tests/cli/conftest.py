import pytest

from saccade import cli


@pytest.fixture
def run(capsys, monkeypatch):
    """A command as typed: its exit code and what it printed."""
    monkeypatch.setattr(cli.console, "_width", 120)

    def call(*arguments):
        try:
            cli.main(list(arguments))
            code = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call
