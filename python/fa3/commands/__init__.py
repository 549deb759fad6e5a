# SPDX-License-Identifier: Apache-2.0
"""The commands of python -m fa3, one module each: add_arguments(parser) and run(arguments)."""
