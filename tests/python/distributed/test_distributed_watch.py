# SPDX-License-Identifier: Apache-2.0
"""Events that do not come in time end the process, those that come do not."""

import time

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from fa3.distributed.transport.watch import SECONDS, Watch


class Event:
    def __init__(self, comes: bool) -> None:
        self.comes = comes

    def query(self) -> bool:
        return self.comes


def ended(events, timeout, seconds):
    ends = []
    watch = Watch(timeout, end=lambda: ends.append(time.monotonic()))
    for event in events:
        watch.expect(event)
    begin = time.monotonic()
    while not ends and time.monotonic() - begin < seconds:
        time.sleep(0.01)
    watch.stop()
    return bool(ends)


def test_what_comes_ends_nothing():
    assert not ended([Event(True), Event(True)], 0.0, 3 * SECONDS)


def test_what_is_not_late_yet_ends_nothing():
    assert not ended([Event(True), Event(False)], 60.0, 3 * SECONDS)


def test_what_never_comes_ends_the_process_and_says_why(capfd):
    assert ended([Event(True), Event(False)], 0.1, 10 * SECONDS)
    assert "within the group's timeout of 0.1 s" in capfd.readouterr().err
