# SPDX-License-Identifier: Apache-2.0
"""Models whose layers ask for no function of attention.

Transformers takes those of Falcon, GPT-J, GPT-Neo, ... from a table of classes. The table is
replaced before a model of its module is made, so that a name of fa3 raises fa3.Unsupported with a
way to fa3 where a dict raises KeyError. Layers of XGLM, LED, MPT, ... compute attention themselves:
a warning says so.
"""

import functools
import sys
import warnings

from transformers import PreTrainedModel

from fa3.errors import Unsupported

ENDING = "_ATTENTION_CLASSES"


class Table(dict):
    def __init__(self, classes, table):
        super().__init__(classes)
        self.table = table

    def __missing__(self, name):
        refuse(name, self.table, self)


def refuse(name, table, classes):
    if "sdpa" in classes:
        advice = '"sdpa" calls fa3 after fa3.torch.enable_sdpa()'
    elif "flash_attention_2" in classes:
        advice = '"flash_attention_2" calls fa3 on a GPU after `fa3 adopt --flash-attn`'
    else:
        advice = '"eager" runs this model'
    known = " or ".join(f'"{x}"' for x in classes)
    raise Unsupported(
        f"attn_implementation: expected {known}, which Transformers has in {table} for this model, "
        f'got "{name}"; {advice}'
    )


def watch(names):
    """Has tables replaced, of the module of a model that is made with one of these names."""
    check = PreTrainedModel._check_and_adjust_attn_implementation

    @functools.wraps(check)
    def checked(self, attn_implementation, *arguments, **keywords):
        if attn_implementation in names:
            replace_tables(type(self), attn_implementation)
            warn_of_own_attention(type(self), attn_implementation)
        try:
            return check(self, attn_implementation, *arguments, **keywords)
        except ImportError as error:
            own = getattr(self, "_compatible_flash_implementations", None)
            if attn_implementation not in names or own is None:
                raise
            raise Unsupported(
                f"attn_implementation: Transformers replaces {attn_implementation!r} by one of "
                f'{own}, of this model\'s own list, which it cannot load; "fa3" runs this model'
            ) from error

    PreTrainedModel._check_and_adjust_attn_implementation = checked


def replace_tables(model, name):
    module = sys.modules[model.__module__]
    for table, classes in vars(module).copy().items():
        if not table.endswith(ENDING) or not isinstance(classes, dict):
            continue
        is_flash = "flash" in name and "flash_attention_2" in classes
        if is_flash and not hasattr(module, "_flash_attention_forward"):  # flash_attn is not here
            refuse(name, table, classes)
        setattr(module, table, Table(classes, table))


def warn_of_own_attention(model, name):
    """Where the model's module has attention, and asks for no function and no table of classes."""
    module = sys.modules[model.__module__]
    names = vars(module)
    asks = "ALL_ATTENTION_FUNCTIONS" in names or any(x.endswith(ENDING) for x in names)
    has_attention = any(
        "Attention" in x and getattr(value, "__module__", None) == module.__name__
        for x, value in names.items()
    )
    if has_attention and not asks:
        warnings.warn(
            f'attn_implementation="{name}": layers of {model.__name__} compute attention '
            "themselves, so fa3 is not called; only their mask follows the name",
            stacklevel=2,
        )
