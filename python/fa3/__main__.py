# SPDX-License-Identifier: Apache-2.0
"""python -m fa3 doctor | verify | bench | plot. Each says what it takes with --help."""

import argparse
import importlib
import sys

COMMANDS = {
    "doctor": "what works on this machine, and why the rest does not",
    "verify": "a grid of cases against double precision, beside standard attention",
    "bench": "fa3 beside torch's scaled_dot_product_attention, in one process",
    "plot": "the figures of the paper from the JSON lines of bench",
}


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m fa3", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"fa3.commands.{name}")
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
