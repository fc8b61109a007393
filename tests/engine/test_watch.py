"""Watchers of a run: several as one, of which one may fail."""

import pytest

from saccade.engine.watch import Several, Silent


class Listener(Silent):
    def __init__(self):
        self.heard = []

    def say(self, sentence):
        self.heard.append(sentence)

    def stepped(self, step, terms, rate, images):
        self.heard.append(step)

    def __enter__(self):
        self.heard.append("enter")
        return self

    def __exit__(self, *_):
        self.heard.append("exit")


class Broken(Silent):
    def stepped(self, step, terms, rate, images):
        raise OSError("disk full")


def test_several_are_told_alike_and_one_that_fails_is_let_go():
    screen, other = Listener(), Listener()
    with Several(screen, Broken(), other) as all_of_them:
        all_of_them.stepped(1, {}, 0.1, 1)
        all_of_them.stepped(2, {}, 0.1, 1)
        all_of_them.say("hello")
    assert screen.heard == ["enter", 1, "Broken has stopped: disk full", 2, "hello", "exit"]
    assert other.heard == ["enter", 1, 2, "hello", "exit"]


def test_the_screens_own_error_is_not_hidden():
    with pytest.raises(OSError, match="disk full"):
        Several(Broken()).stepped(1, {}, 0.1, 1)
