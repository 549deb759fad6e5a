# SPDX-License-Identifier: Apache-2.0
"""Calls of vLLM and sglang that fa3 does not take are refused by a sentence in their words."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from serving_batch import HEADS, Batch, sglang_call, vllm_call  # noqa: E402

REFUSED = {
    "dropout_p: expected 0.0, got 0.1": (vllm_call, {"dropout_p": 0.1}),
    "sink: not together with bias or alibi_slopes": (
        vllm_call,
        {"alibi_slopes": torch.zeros(HEADS), "s_aux": torch.zeros(HEADS)},
    ),
    "output_scale: expected None": (vllm_call, {"output_scale": torch.ones(1)}),
    "mask_mod: expected None": (vllm_call, {"mask_mod": max}),
    "block_sparse_tensors: expected None": (vllm_call, {"block_sparse_tensors": ()}),
    "dynamic_causal: expected None": (vllm_call, {"dynamic_causal": torch.ones(4)}),
    "gather_kv_indices: expected None, got a tensor": (
        vllm_call,
        {"gather_kv_indices": torch.zeros(1), "fa_version": 4},
    ),
    "score_mod: expected None": (sglang_call, {"score_mod": max}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_fa3_lacks_is_refused_by_name(sentence):
    call, changes = REFUSED[sentence]
    with pytest.raises(fa3.Unsupported, match=sentence):
        call(Batch("cpu"), **changes)


def test_e5m2_queries_are_refused():
    batch = Batch("cpu")
    e5m2 = [x.to(torch.float8_e5m2) for x in (batch.q, batch.k_pages, batch.v_pages)]
    with pytest.raises(fa3.InvalidArgument, match="q: expected .*got float8_e5m2, .* caches alone"):
        vllm_call(batch, **dict(zip("qkv", e5m2, strict=True)), out=None)


@pytest.mark.parametrize(
    "sentence, changes",
    [
        ("expected one of them", {"seqused_k": None}),
        ("expected one of them", {"cu_seqlens_k": torch.zeros(5)}),
        ("seqused_k: expected the lengths", {"seqused_k": None, "cu_seqlens_k": torch.zeros(5)}),
        ("block_table: expected a page", {"block_table": torch.full((4, 3), 99)}),
        ("s_aux: .* query heads = 4", {"s_aux": torch.zeros(3)}),
    ],
)
def test_vllm_calls_that_are_wrong_are_named_in_its_words(sentence, changes):
    with pytest.raises(fa3.InvalidArgument, match=sentence):
        vllm_call(Batch("cpu"), **changes)


@pytest.mark.parametrize(
    "sentence, call, name, added",
    [
        ("block_table: expected a page", vllm_call, "block_table", 2**32),
        ("seqused_k: expected a length", vllm_call, "seqused_k", 2**32),
        ("seqused_k: expected int32, got float", vllm_call, "seqused_k", 0.5),
        ("page_table: expected a page", sglang_call, "page_table", 2**32),
        ("cache_seqlens.*: expected a length", sglang_call, "cache_seqlens", 2**32),
        ("cache_seqlens: expected .*float", sglang_call, "cache_seqlens", 0.5),
    ],
)
def test_lengths_and_tables_are_never_taken_for_others(sentence, call, name, added):
    batch = Batch("cpu")
    numbers = batch.table if name.endswith("table") else batch.used
    with pytest.raises(fa3.InvalidArgument, match=sentence):
        call(batch, **{name: numbers.long() + added})


def test_lengths_on_all_ranks_are_one_for_each_sequence():
    ranks = {"cp_world_size": 2, "cp_rank": 0, "cp_tot_seqused_k": torch.zeros(5).int()}
    with pytest.raises(fa3.InvalidArgument, match=r"cp_tot_seqused_k: expected shape \(4,\)"):
        vllm_call(Batch("cpu"), **ranks)
