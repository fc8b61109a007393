import pytest


@pytest.fixture
def typed(capsys):
    """A command, as typed: its exit code, its stdout and its stderr."""
    from saccade import cli  # not before jaxtyping knows what to check

    def call(*words):
        capsys.readouterr()
        try:
            cli.main(list(words))
            code = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def run(typed):
    """A command, as typed: its exit code and all that it prints."""

    def call(*words):
        code, out, err = typed(*words)
        return code, out + err

    return call
