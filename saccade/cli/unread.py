"""Pictures that cannot be read: each is reported and skipped, and the exit code is then 1."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from saccade.cli.console import note, show_json

Answer = TypeVar("Answer")


class Unread:
    """Counts pictures, and those of them that cannot be read."""

    def __init__(self, json: bool = False):
        self.json = json
        self.pictures = self.unread = 0

    def pass_over(
        self, answers: Iterable[tuple[str, Answer | str]]
    ) -> Iterator[tuple[str, Answer]]:
        """Files and their answers; those whose answer is a sentence are noted instead."""
        for file, answer in answers:
            if isinstance(answer, str):
                self.note(file, answer)
            else:
                self.pictures += 1
                yield file, answer

    def note(self, file: str, sentence: str) -> None:
        """Say why a file is passed over."""
        self.pictures += 1
        self.unread += 1
        note(sentence, "yellow")
        if self.json:
            show_json({"file": file, "error": sentence})

    def end(self) -> None:
        """Say how many were passed over, and exit with 1 if there were any."""
        if self.unread:
            sentence = f"{self.unread} of {self.pictures} pictures cannot be read and are skipped"
            note(sentence, "yellow")
            raise SystemExit(1)
