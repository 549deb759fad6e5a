# SPDX-License-Identifier: Apache-2.0
"""The files of tests that run through fa3's names: what each imports, which of its cases are of
interest, what fa3 has not. Next: ../flash_attn_tests.py, which runs them."""

import types
from collections.abc import Callable
from typing import NamedTuple


class Suite(NamedTuple):
    """A file of tests: what it imports, and which of its cases are of interest here."""

    modules: Callable  # -> name -> module: ours under flash_attn's names
    skips: Callable  # what the tests skip at once, of the cases of one name
    # A parameter -> why fa3 refuses the cases that have it, and which of them it refuses.
    lacks: dict[str, tuple[str, Callable]]
    left_out: dict[str, str]  # a test -> why it cannot pass
    asked: tuple[str, ...] = ()  # tests that FlashAttention-4 skips on this GPU, and fa3 does not


def module(name, **names):
    made = types.ModuleType(name)
    made.__dict__.update(names)
    return made


def names_of_fa3():
    import fa3.compat.flash_attn_interface as ours

    return {"flash_attn_interface": ours, "flash_attn": module("flash_attn")}


def names_of_fa2():
    import fa3.compat.bert_padding
    import fa3.compat.flash_attn as ours

    functions = {name: value for name, value in vars(ours).items() if name.startswith("flash_attn")}
    return {
        "flash_attn": module("flash_attn", **functions),
        "flash_attn.flash_attn_interface": ours,
        "flash_attn.bert_padding": fa3.compat.bert_padding,
    }


def skips_of_fa3(name, case):
    if case.get("has_qv") and (case["d"] != 64 or "float8" in str(case["dtype"])):
        return True
    if name != "test_flash_attn_kvcache":
        return False
    page, new = case["page_size"], case["new_kv"]
    return (
        (page is not None and case["seqlen_k"] % page != 0)
        or (case["seqlen_q"] > case["seqlen_k"] and new)
        or (not new and case["rotary_fraction"] > 0)
    )


def skips_of_fa2(name, case):
    if case.get("softcap") and case["dropout_p"]:
        return True
    if name != "test_flash_attn_kvcache":
        return False
    paged, new = case["paged_kv_block_size"] is not None, case["new_kv"]
    return (
        (paged and (case["has_batch_idx"] or case["has_leftpad"]))
        or (case["seqlen_q"] > case["seqlen_k"] and new)
        or (not new and case["rotary_fraction"] > 0)
    )


def names_of_fa4():
    from flash_attn_names import calls

    return calls.modules()


def skips_nothing(name, case):
    return False


def skips_of_fa4_scores(name, case):
    page = case.get("page_size")
    if page is not None and case["seqlen_kv"] % page != 0:
        return True
    return case.get("dim") == 64 and "backward" in name  # on Hopper


def skips_of_packed_fa4_masks(name, case):
    if name != "test_varlen_block_sparse":
        return False
    return case["varlen_k"] and (case["use_seqused_k"] or not case["varlen_q"])


def skips_of_packed_fa4_scores(name, case):
    if "backward" in name:
        return case["dim"] == 64
    q, k, page = case["varlen_q"], case["varlen_k"], case.get("page_size")
    if not (q or k) or (page is not None and (k or case["seqlens_k"][0] % page != 0)):
        return True
    if "global" not in name:
        return False
    *_, packed = case["score_mod_tuple"]  # what its function says that it needs
    return not {"q": q, "kv": k, "both": q and k}[packed]


ALIBI = {
    "alibi": (
        "fa3 has no S_dmask of ALiBi",
        lambda case: str(case.get("dropout_p", "0.0")) != "0.0",
    )
}
INTERNALS = "calls parts of FlashAttention-4 that have no counterpart"
ITS_TILES = "asks for FlashAttention-4's tile sizes, errors or caches of compiled kernels"
OF_FA4_MASKS = {
    **dict.fromkeys(
        (
            *("test_dq_write_order_static_masks", "test_dq_write_order_parameterized_masks"),
            *("test_dq_write_order_document_mask", "test_compact_block_sparse_indices"),
            "test_block_sparse_bwd_normalize_accepts_odd_kv_subtile_for_1cta",
            "test_sm100_block_sparse_bwd_kv_subtile_selects_cta_policy",
            "test_sm100_block_sparse_bwd_kv_subtile_rejects_non_multiple",
            "test_sm100_block_sparse_sink_all_masked",
        ),
        INTERNALS,
    ),
    **dict.fromkeys(
        (
            "test_sm90_block_sparse_bwd_mismatched_q_block_granularity_error_message",
            "test_sm90_block_sparse_infers_block_size",
            "test_gqa_block_sparse_broadcast_pattern_recompilation",
        ),
        ITS_TILES,
    ),
    "test_cute_mask_mod_vectorized": "the test skips GPUs other than SM100",
}
OF_FA4_SCORES = {
    "test_sm90_block_sparse_score_mod_backward_with_dq_swapab": ITS_TILES,
}
OF_PACKED_FA4_MASKS = {
    "test_varlen_mask_mod_vectorized": "the test skips GPUs other than SM100",
    "test_varlen_block_sparse_coarse_kv_requires_offsets": ITS_TILES,
}
# Split keys, tiles larger than a kernel's, rows of tiles that see nothing, and pages.
ASKED_OF_MASKS = (
    *("test_block_sparse_splitkv_matches_unsplit", "test_persistent_blocksparse_empty_tiles"),
    *("test_sm100_block_sparse_coarse_blocks", "test_block_sparse_splitkv_oversplit_sparse_blocks"),
    "test_sm100_block_sparse_coarse_kv_masks_tail_subtiles",
)
ASKED_OF_PACKED_MASKS = (
    "test_varlen_block_sparse_splitkv_matches_unsplit",
    "test_varlen_block_sparse_coarse_kv_metadata_stride_repro",
)
ASKED_OF_SCORES = (
    "test_score_mod_with_paged_kvcache",
    "test_score_mod_with_paged_kvcache_aux_tensors",
)
SUITES = {
    "cute/test_mask_mod.py": Suite(names_of_fa4, skips_nothing, {}, OF_FA4_MASKS, ASKED_OF_MASKS),
    "cute/test_mask_mod_varlen.py": Suite(
        names_of_fa4, skips_of_packed_fa4_masks, {}, OF_PACKED_FA4_MASKS, ASKED_OF_PACKED_MASKS
    ),
    "cute/test_score_mod.py": Suite(
        names_of_fa4, skips_of_fa4_scores, {}, OF_FA4_SCORES, ASKED_OF_SCORES
    ),
    "cute/test_score_mod_varlen.py": Suite(names_of_fa4, skips_of_packed_fa4_scores, {}, {}),
    "cute/test_block_sparsity.py": Suite(names_of_fa4, skips_nothing, {}, {}),
    "hopper/test_flash_attn.py": Suite(
        names_of_fa3,
        skips_of_fa3,
        {},
        {"test_flash_attn_race_condition": "each process fills 70 GB"},
    ),
    "hopper/test_flash_attn_bwd_determinism.py": Suite(names_of_fa3, skips_of_fa3, {}, {}),
    "tests/test_flash_attn.py": Suite(
        names_of_fa2,
        skips_of_fa2,
        ALIBI,
        {
            "test_flash_attn_varlen_paged_kv_num_splits": "asks that num_splits=2 is refused, "
            "which fa3 takes",
            "test_flash_attn_kvcache_paged_block_table_bounds": "asks for an error that takes "
            "reading lengths from the GPU; no call of fa3 waits for them",
            "test_flash_attn_generator_arg_must_be_none": "calls the compiled module",
        },
    ),
}
