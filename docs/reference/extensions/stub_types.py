# SPDX-License-Identifier: Apache-2.0
"""Signatures of the reference with the types of the stubs (.pyi) beside the modules.

A function of several overloads has the union of their results. Fields of the stub's TypedDicts are
the types of the options, which the stub takes as **options.
"""

import ast
import functools
import sys
from pathlib import Path


@functools.cache
def stub(module):
    """Types of the arguments by function, types of the results by function."""
    path = Path(sys.modules[module].__file__).with_suffix(".pyi")
    if not path.exists():
        return {}, {}
    tree = ast.parse(path.read_text())
    options = {
        field.target.id: ast.unparse(field.annotation)
        for group in tree.body
        if isinstance(group, ast.ClassDef) and "Options" in group.name
        for field in group.body
        if isinstance(field, ast.AnnAssign)
    }
    arguments, results = {}, {}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            args = function.args
            types = arguments.setdefault(function.name, dict(options))
            for argument in args.posonlyargs + args.args + args.kwonlyargs:
                if argument.annotation is not None:
                    types[argument.arg] = ast.unparse(argument.annotation)
            if function.returns is not None:
                found = results.setdefault(function.name, [])
                for part in ast.unparse(function.returns).split(" | "):
                    if part not in found:
                        found.append(part)
    return arguments, results


def typed(app, what, name, obj, options, signature, return_annotation):
    module = getattr(obj, "__module__", None)
    if what != "function" or signature is None or not str(module).startswith("fa3."):
        return None
    arguments, results = stub(module)
    function = obj.__name__
    if function not in arguments:
        return None
    try:
        definition = ast.parse(f"def f{signature}: ...").body[0]
    except SyntaxError:  # a default that Python cannot read back
        return None
    args = definition.args
    for argument in args.posonlyargs + args.args + args.kwonlyargs:
        known = arguments[function].get(argument.arg)
        if known is not None:
            argument.annotation = ast.parse(known, mode="eval").body
    texts = results.get(function, [])
    # bool overloads say what both others do.
    return f"({ast.unparse(args)})", " | ".join(texts) or return_annotation


def setup(app):
    app.connect("autodoc-process-signature", typed)
