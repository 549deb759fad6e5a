# SPDX-License-Identifier: Apache-2.0
"""python -m fa3, and the script fa3 of an installation: the command of the C++ build, which lies
beside the package, and what only Python can do (plot, replay; what doctor says about Python)."""

import io
import os
import signal
import sys
from pathlib import Path

import fa3

COMMAND = Path(__file__).parent / "bin" / "fa3"
WITHOUT_COMMAND = (
    f"expected the command at {COMMAND}, but this package was built without it. Install the "
    "headers it needs, CLI11, fmt and nlohmann-json (Debian: libcli11-dev libfmt-dev "
    "nlohmann-json3-dev), and build the package again; plot, adopt, replay, doctor and --version "
    "work without it."
)


def main(arguments=None):
    if arguments is None:  # a program, which `| head` ends; the C++ command inherits this
        arguments = sys.argv[1:]
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        try:
            return run(arguments)
        finally:
            flush_stdout()
    except OSError as error:
        if error.filename is not None:
            raise
        print(f"fa3: writing failed: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest as it ends
        return 1


def flush_stdout():
    if sys.stdout is not None:  # closed by the caller
        sys.stdout.flush()


def run(arguments):
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files may be any bytes
    if arguments[:1] == ["plot"]:
        from fa3.commands import plot

        return plot.main(arguments[1:])
    if arguments[:1] == ["adopt"]:
        from fa3.commands import adopt

        return adopt.main(arguments[1:])
    if arguments[:1] == ["replay"]:
        from fa3.commands import replay

        return replay.main(arguments[1:])
    has_command = COMMAND.exists()
    if arguments == ["doctor"]:
        from fa3.commands import doctor

        doctor.print_facts()
        if not has_command:
            return doctor.check_engines(WITHOUT_COMMAND)
        flush_stdout()
    if not has_command:
        if arguments == ["--version"]:
            print(f"fa3 {fa3.__version__} (without the command)")
            return 0
        print(f"fa3: {WITHOUT_COMMAND}", file=sys.stderr)
        return 2
    os.execv(COMMAND, [str(COMMAND), *arguments])


if __name__ == "__main__":
    sys.exit(main())
