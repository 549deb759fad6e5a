# SPDX-License-Identifier: Apache-2.0
"""The options of attention: one table, from which all layers take them.

A new option needs one line in each of four places:
    this table                      name, default, type in the schemas of torch.ops.fa3
    ops.py, docstring of attention  what it means
    ops.pyi                         its type for type checkers
    python/native/passes.h          the field of the C ABI that it fills
Signatures, schemas, the order of arguments and the checks of types follow from the table.

Between the public functions and the C ABI, options go as one list: in the order of the table, up to
the last that is not at its default. Options(*options) names them.
"""

import ast
import collections
import inspect

from fa3._arrays import in_int32, view
from fa3._dropout import seed_view
from fa3.errors import InvalidArgument
from fa3.masks import LENGTHS, as_block_mask

# fa3_engine_id
ENGINES = {"auto": 0, "cpu": 1, "reference": 2, "standard": 3, "hopper": 4, "ampere": 5}

# Lines of the schemas of torch.ops.fa3; passes.h reads the values in this order. Autograd saves the
# tensors, which stand together.
SCORES = (
    "bool causal=False",
    "SymInt window_left=-1",
    "SymInt window_right=-1",
    "float softcap=0.0",
    "float? scale=None",
)
TENSORS = (
    "Tensor? sink=None",
    "Tensor? gate=None",
    "Tensor? cu_seqlens_q=None",
    "Tensor? cu_seqlens_k=None",
    "Tensor? seqused_q=None",
    "Tensor? seqused_k=None",
    "Tensor? dropout_seed=None",
    "Tensor? block_mask=None",
    "Tensor? block_mask_bits=None",
)
BOTH_PASSES = (
    *SCORES,
    *TENSORS,
    "SymInt max_seqlen_q=0",
    "SymInt max_seqlen_k=0",
    "bool deterministic=False",
    "int engine=0",
    "int num_threads=0",
    "SymInt attention_chunk=0",
    "bool batch_invariant=False",
    "SymInt window_shift=0",
    "int sm_margin=0",
    "float dropout_p=0.0",
    "SymInt dropout_sequence=0",
    "SymInt dropout_head=0",
    "SymInt dropout_query=0",
    "SymInt dropout_key=0",
)
# The last ones have no gradient: caches and quantized tensors.
FORWARD = (
    *BOTH_PASSES,
    "Tensor? page_table=None",
    "Tensor? batch_index=None",
    "Tensor? left_padding=None",
    "int num_splits=0",
    "Tensor? q_descale=None",
    "Tensor? k_descale=None",
    "Tensor? v_descale=None",
    "Tensor? k_mean=None",
    "Tensor? v_mean=None",
    "bool v_transposed=False",
)

TYPES, DEFAULTS = {}, {}
for line in FORWARD:
    kind, _, declared = line.partition(" ")
    name, _, default = declared.partition("=")
    TYPES[name], DEFAULTS[name] = kind, ast.literal_eval(default)

IN_ORDER = tuple(DEFAULTS.values())
NAMES = tuple(DEFAULTS)
# Parts of a list of options in order, which may end early.
OF_SCORES, BEHIND_SCORES = slice(len(SCORES)), slice(len(SCORES), None)
OF_TENSORS = slice(len(SCORES), len(SCORES) + len(TENSORS))
OTHERS = slice(OF_TENSORS.stop, len(BOTH_PASSES))


class Options(collections.namedtuple("Options", NAMES, defaults=IN_ORDER)):  # type: ignore[misc]
    """Options by their names in the operators; those not given have their defaults."""

    __slots__ = ()

    def given(self):
        """As the compiled module takes them: up to the last that is not at its default."""
        end = len(self)
        while end and self[end - 1] is IN_ORDER[end - 1]:
            end -= 1
        return self[:end]

    def around_block_mask(self):
        """(the options before the block mask's two arrays, given() of those behind it)"""
        place = NAMES.index("block_mask")
        return self[:place], self.given()[place + 2 :]

    def tensors(self):
        """The tensors among the options of both passes."""
        return self[OF_TENSORS]

    def with_tensors(self, tensors):
        return self._replace(**dict(zip(NAMES[OF_TENSORS], tensors, strict=True)))


def engine_id(name):
    if isinstance(name, str) and name in ENGINES:
        return ENGINES[name]
    raise InvalidArgument(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}")


def window_ends(window, name="window"):
    """(left, right) for the operators, where -1 is unbounded."""
    if window is None:
        return -1, -1
    try:
        left, right = window
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{name}: expected (left, right) in keys, None or -1 for unbounded, got {window!r}"
        ) from None
    return -1 if left is None else left, -1 if right is None else right


def dropout_origin(origin):
    """Its four coordinates for the operators."""
    try:
        sequence, head, query, key = origin
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"dropout_origin: expected (sequence, head, query, key), got {origin!r}"
        ) from None
    return sequence, head, query, key


# Options that the public functions take in another form: the name and default there, and what
# turns a value into the operators' values.
PUBLIC_FORMS = {
    "window_left": ("window", (-1, -1), window_ends),
    "window_right": ("window", (-1, -1), window_ends),
    "block_mask": ("block_mask", None, as_block_mask),
    "block_mask_bits": ("block_mask", None, as_block_mask),
    "engine": ("engine", "auto", lambda name: (engine_id(name),)),
    **{name: (name, None, lambda integers: (in_int32(integers),)) for name in LENGTHS},
    **dict.fromkeys(
        ("dropout_sequence", "dropout_head", "dropout_query", "dropout_key"),
        ("dropout_origin", (0, 0, 0, 0), dropout_origin),
    ),
}


def public(lines):
    """The options of public functions: name -> (first place, last place + 1, default, form)."""
    found = {}
    for place, (name, default) in enumerate(list(DEFAULTS.items())[: len(lines)]):
        name, default, form = PUBLIC_FORMS.get(name, (name, default, None))
        first, *_ = found.get(name, (place,))
        found[name] = first, place + 1, default, form
    return found


OF_FORWARD, OF_BOTH_PASSES = public(FORWARD), public(BOTH_PASSES)


def shows(parameters):
    """Shows `parameters` in a function's signature, where it takes *arguments and **options."""

    def decorate(function):
        signature = inspect.signature(function)
        variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        own = [p for p in signature.parameters.values() if p.kind not in variable]
        function.__signature__ = signature.replace(parameters=[*own, *parameters])
        return function

    return decorate


def takes_options(known=OF_FORWARD):
    """Shows the options that a function takes as **options."""
    by_name = inspect.Parameter.KEYWORD_ONLY
    defaults = [(name, default) for name, (*_, default, _) in known.items()]
    return shows([inspect.Parameter(name, by_name, default=x) for name, x in defaults])


# What torch, FlashAttention, vLLM and sglang call it.
ELSEWHERE = {
    "is_causal": "causal",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "window_size": "window",
    "sliding_window": "window",
    "logits_soft_cap": "softcap",
    "s_aux": "sink",
    "sinks": "sink",
    "learnable_sink": "sink",
    "attn_mask": "bias or block_mask",
    "mask": "bias or block_mask",
    "score_mod": "an argument of fa3.flex_attention",
    "mask_mod": "an argument of fa3.flex_attention",
    "attn_bias": "bias",
    "block_table": "page_table",
    "cache_seqlens": "seqused_k",
    "cache_batch_idx": "batch_index",
    "leftpad_k": "left_padding",
    "return_softmax_lse": "return_lse",
    "enable_gqa": "nothing: k and v may have fewer heads",
}


def instead_of(name, known):
    """The end of a sentence about an option that does not exist."""
    if name in ELSEWHERE:
        return f"; here that is {ELSEWHERE[name]}"
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f". Did you mean {near[0]!r}?" if near else ""


def refuse_positions(caller, expected, others):
    """others: arguments by position behind the expected number of them."""
    raise TypeError(
        f"{caller}() takes {expected} arguments by position, got {expected + len(others)}; "
        "name the others: bias= or block_mask= is a mask, and score_mod= and mask_mod= are "
        "functions, which fa3.flex_attention takes"
    )


def in_order(caller, named, known=OF_FORWARD):
    """Options by name, as a list in the order of the table up to the last that is not at default.

    None is the default of every option.

    Args:
        caller: the public function that was given the options, for its error.
        named: the options by their public names.
        known: the options that the function has.

    Raises:
        TypeError: a name that is not in `known`.
        fa3.InvalidArgument: a window that is no pair, an engine that does not exist.
    """
    options = [*IN_ORDER]
    end = 0
    for name, value in named.items():
        try:
            first, last, default, form = known[name]
        except KeyError:
            message = f"{caller}() got an unexpected keyword argument {name!r}"
            raise TypeError(message + instead_of(name, known)) from None
        if value is default or value is None:
            continue
        if type(value) is type(default) is float and value == default:
            continue
        if form is None:
            options[first] = value
        else:
            options[first:last] = form(value)
        if last > end:
            end = last
    return options[:end]


def viewed(named, view=view):
    """Options by name, their arrays replaced by what the compiled module accepts."""
    if "dropout_seed" in named:
        named = named | {"dropout_seed": seed_view(named["dropout_seed"])}
    if "block_mask" in named:
        pair = as_block_mask(named["block_mask"])
        views = (None if x is None else view(x, "block_mask") for x in pair)
        named = named | {"block_mask": tuple(views)}
    tensors = {x for x in named if TYPES.get(x) == "Tensor?" and x != "block_mask"}
    return {
        name: view(value, name) if name in tensors and value is not None else value
        for name, value in lengths_in_int32(named).items()
    }


def lengths_in_int32(named):
    """Options by name, with lengths and tables as the library reads them."""
    return {name: in_int32(x) if name in LENGTHS else x for name, x in named.items()}
