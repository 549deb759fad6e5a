# SPDX-License-Identifier: Apache-2.0
"""Questions to a GPU that nobody waits for: an answer is read when it has come."""

import collections
import threading
import weakref

import torch


class Later(threading.local):
    """Questions of one kind, yes or no. Each thread asks its own."""

    def __init__(self):
        self.asked = collections.deque()  # (event, the answer in host memory)
        self.last = None  # the tensor that was asked about last: the layers of a model share it

    def ask(self, tensor, question):
        """question: from a tensor on a GPU to a boolean there."""
        if self.last is not None and self.last() is tensor:
            return
        self.last = weakref.ref(tensor)
        if torch.cuda.is_current_stream_capturing():  # a graph asks nobody
            return
        with torch.cuda.device(tensor.device):
            answer = in_host_memory()
            answer.copy_(question(tensor), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self.asked.append((event, answer))

    def found(self):
        """Whether an answer that has come since is yes."""
        answers = []
        while self.asked and self.asked[0][0].query():
            answers.append(bool(self.asked.popleft()[1]))
        return any(answers)


def in_host_memory():
    return torch.empty((), dtype=torch.bool, pin_memory=True)
