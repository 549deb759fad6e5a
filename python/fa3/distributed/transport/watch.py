# SPDX-License-Identifier: Apache-2.0
"""Ends a process whose group has lost a rank: a stream that waits for a flag waits for ever.

NCCL's own watchdog does the same for its messages: an error could reach no one, for the thread that
called may be waiting for the GPU.
"""

import atexit
import collections
import os
import sys
import threading
import time

SECONDS = 0.5  # between looks


class Watch:
    """A thread that looks after events, each of which has `timeout` seconds from its expect()."""

    def __init__(self, timeout: float, end=os.abort) -> None:
        self.timeout, self.end = timeout, end
        self.expected: collections.deque = collections.deque()
        self.thread: threading.Thread | None = None
        self.stopped = threading.Event()

    def expect(self, event) -> None:
        """event.query() says whether it has come. Events come in the order they are expected."""
        self.expected.append((event, time.monotonic() + self.timeout))
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="fa3 watch", daemon=True)
            self.thread.start()
            # A thread that Python's end finds inside of CUDA ends the process with an error.
            atexit.register(self.stop)

    def stop(self) -> None:
        self.stopped.set()
        if self.thread is not None:
            self.thread.join()

    def run(self) -> None:
        while not self.stopped.wait(SECONDS):
            if self.is_late():
                print(
                    "fa3.distributed: expected the rows of the other ranks within the group's "
                    f"timeout of {self.timeout:g} s, but they have not come: a rank has ended, is "
                    "late, or made another call. This process ends, as NCCL would end it",
                    file=sys.stderr,
                    flush=True,
                )
                self.end()
                return

    def is_late(self) -> bool:
        while self.expected and self.expected[0][0].query():
            self.expected.popleft()
        return bool(self.expected) and self.expected[0][1] < time.monotonic()
