# SPDX-License-Identifier: Apache-2.0
"""Arrays over several devices: attention is cut along the batch and along the key heads.

jit with shardings asks for it by custom partitioning, meshes with explicit axes by the types of
results. Inside of shard_map, arrays are a device's own, and only have to vary alike.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from fa3.errors import Unsupported


def axes_of(call, sizes, mesh, q_spec):
    """Mesh axes by the letter of the extent that they cut: b and the heads, where they divide. A
    single key head is whole on every device. With dropout nothing is cut."""
    if call.has_dropout():
        return {}
    letters = call.extents("q")
    wanted = dict(zip(letters, [*q_spec, *(None for _ in letters)], strict=False))
    axes = {}
    heads = sizes["h"] if sizes["g"] == 1 else sizes["g"]
    for letter, extent in (("b", sizes.get("b")), ("h", heads)):
        names = wanted.get(letter)
        names = names if isinstance(names, tuple) else (names,) if names is not None else ()
        if names and extent % math.prod(mesh.shape[x] for x in names) == 0:
            axes[letter] = names
    if "h" in axes and sizes["g"] > 1:
        axes["g"] = axes["h"]
    return axes


def specs_of(call, names, axes):
    return [PartitionSpec(*(axes.get(x) for x in call.extents(name))) for name in names]


def result_types(*operands, call):
    """The results' types: shapes, and the mesh axes by which they are cut or vary."""
    named = dict(zip(call.operands, operands, strict=True))
    q, sizes = named["q"], call.sizes([x.shape for x in operands])
    mesh = q.sharding.mesh
    axes = axes_of(call, sizes, mesh, q.sharding.spec)

    def type_of(name, spec):
        if name[1:] in named:  # a gradient
            return named[name[1:]]
        shape = tuple(sizes[x] for x in call.extents(name))
        dtype = jnp.bfloat16 if q.dtype == jnp.float8_e4m3fn else q.dtype
        dtype = jnp.dtype("float32" if name in ("lse", "max_logit") else dtype)
        return q.update(shape=shape, dtype=dtype, sharding=NamedSharding(mesh, spec))

    return [*map(type_of, call.results, specs_of(call, call.results, axes))]


def partitioned(shard):
    """function(call, *operands) that runs the primitive `shard` on every device."""

    def whole(call, *operands):
        return tuple(shard.bind(*operands, call=call))

    def cut(call, mesh, operands):
        q = operands[call.operands.index("q")]
        if not isinstance(q.sharding, NamedSharding):
            raise Unsupported(
                "fa3.jax.attention: expected a mesh whose axes have names; call it within one "
                "(jax.set_mesh, or `with mesh:`)"
            )
        axes = axes_of(call, call.sizes([x.shape for x in operands]), mesh, q.sharding.spec)
        placed = [
            tuple(NamedSharding(mesh, spec) for spec in specs_of(call, names, axes))
            for names in (call.operands, call.results)
        ]
        return axes, *placed

    def infer(call, mesh, operands, results):
        return cut(call, mesh, operands)[-1]

    def partition(call, mesh, operands, results):
        axes, of_operands, of_results = cut(call, mesh, operands)

        def run(*arrays):
            found = shard.bind(*arrays, call=call)
            over = {"dsink": axes.get("b", ())}
            if "g" not in axes:
                over |= dict.fromkeys(("dk", "dv"), axes.get("h", ()))
            pairs = zip(call.results, found, strict=True)
            return tuple(jax.lax.psum(x, over[name]) if over.get(name) else x for name, x in pairs)

        return mesh, run, of_results, of_operands

    function = custom_partitioning(whole, static_argnums=(0,))
    function.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    return function


def rule(call, mesh, operands, results):
    """Which extents are the same, and which may be cut, for the Shardy partitioner."""
    sizes = call.sizes([x.shape for x in operands])
    group = sizes["h"] // max(sizes["g"], 1)
    heads = "g" if group == 1 else "h" if sizes["g"] == 1 else "(g r)"

    def side(names):
        return ", ".join(" ".join(call.extents(name)).replace("h", heads) for name in names)

    text = f"{side(call.operands)} -> {side(call.results)}"
    order = dict.fromkeys(x for x in text if x.isalpha())  # of appearance, as Shardy wants it
    may_be_cut = "" if call.has_dropout() else "bgh"
    options = {"need_replication_factors": tuple(x for x in order if x not in may_be_cut)}
    return text, options | ({"r": group} if "r" in order else {})


def vary_alike(arrays):
    """Inside of shard_map: arrays that are the same on some devices, as ones that may differ. What
    they get as gradients is then summed over those devices."""
    varying = {name: varying_axes(x) for name, x in arrays.items()}
    every = frozenset().union(*varying.values())
    return {name: as_varying(x, every - varying[name]) for name, x in arrays.items()}


def varying_axes(array):
    aval = jax.typeof(array)
    return aval.mat.varying if hasattr(aval, "mat") else aval.vma  # by the version of JAX


def as_varying(array, axes):
    if not axes:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, tuple(axes), to="varying")
    return jax.lax.pvary(array, tuple(axes))
