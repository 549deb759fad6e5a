# SPDX-License-Identifier: Apache-2.0
"""python -m fa3, and the script fa3 of an installation: the command of the C++ build, which lies
beside the package, and what only Python can do (plot; what doctor says about Python)."""

import os
import sys
from pathlib import Path

import fa3

COMMAND = Path(__file__).parent / "bin" / "fa3"


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["plot"]:
        from fa3.commands import plot

        return plot.main(arguments[1:])
    if arguments[:1] == ["adopt"]:
        from fa3.commands import adopt

        return adopt.main(arguments[1:])
    if arguments == ["doctor"]:
        from fa3.commands import doctor

        doctor.print_facts()
        sys.stdout.flush()
    if not COMMAND.exists():
        if arguments == ["--version"]:
            print(f"fa3 {fa3.__version__} (without the command)")
            return 0
        print(
            f"fa3: expected the command at {COMMAND}, but this package was built without it. "
            "Install the headers it needs (Debian: libcli11-dev libfmt-dev nlohmann-json3-dev) and "
            "build the package again; plot, adopt and --version work without it.",
            file=sys.stderr,
        )
        return 2
    os.execv(COMMAND, [str(COMMAND), *arguments])


if __name__ == "__main__":
    sys.exit(main())
