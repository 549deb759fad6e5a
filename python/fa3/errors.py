# SPDX-License-Identifier: Apache-2.0
"""What fa3 raises. The text is the library's own sentence: argument, expected, got, what to do.

Each class is also the built-in exception that Python code would expect.
"""


class Error(Exception):
    """Base of everything that the library refuses or fails at."""


class InvalidArgument(Error, ValueError):
    """The call is wrong; the sentence says what to change."""


class Unsupported(Error, NotImplementedError):
    """The call is right, but nothing here can do it; the sentence says why."""


class WorkspaceTooSmall(Error, ValueError):
    """A workspace of fewer bytes than the library asked for."""


class OutOfMemory(Error, MemoryError):
    """The operating system or the device had no memory left."""


class DeviceError(Error, RuntimeError):
    """The GPU runtime reported an error."""


class CommunicationError(Error, RuntimeError):
    """Ranks of a group did not answer: one has ended, is late, or made another call."""


class InternalError(Error, RuntimeError):
    """A defect of fa3: please report the sentence."""
