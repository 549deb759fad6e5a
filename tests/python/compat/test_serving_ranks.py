# SPDX-License-Identifier: Apache-2.0
"""vLLM's context parallelism: ranks hold keys in turn, and merge what each of them computes."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
fa3 = pytest.importorskip("fa3", reason="the Python package is not built")

from serving_batch import NEW, PAGE, USED, Batch, vllm_call  # noqa: E402


@pytest.fixture
def batch(device):
    return Batch(device)


def test_context_parallelism_of_one_rank_is_none():
    batch = Batch("cpu")
    alone = {"cp_world_size": 1, "cp_rank": 0, "cp_tot_seqused_k": batch.used}
    assert torch.equal(vllm_call(batch, **alone), vllm_call(batch))


WORLD = 3
RANK_MASKS = [
    {"causal": True},
    {"causal": False},
    {"causal": True, "window": (9, 0)},
    {"causal": False, "window": (4, 3)},
    {"causal": False, "window": (-1, 2)},
]


def rank_call(batch, rank, **changes):
    """One rank's part of the batch's attention: its keys in pages of its own."""
    local = [torch.zeros_like(x) for x in (batch.k_pages, batch.v_pages)]
    for sequence in range(len(USED)):
        for keys, pages in zip(batch.keys(sequence), local, strict=True):
            for place, row in enumerate(keys[rank::WORLD]):
                pages[batch.table[sequence, place // PAGE], place % PAGE] = row
    used = (batch.used - rank + WORLD - 1) // WORLD
    call = {"k": local[0], "v": local[1], "seqused_k": used, "max_seqlen_k": max(USED)}
    call |= {"cp_world_size": WORLD, "cp_rank": rank, "cp_tot_seqused_k": batch.used}
    return vllm_call(batch, **{**call, **changes}, return_softmax_lse=True)


def merged(parts):
    """(out, lse) of all keys, from those of each rank's."""
    out, lse = (torch.stack(x).double().cpu() for x in zip(*parts, strict=True))
    weights = torch.softmax(lse, 0).nan_to_num().transpose(1, 2)[..., None]
    return (weights * out).sum(0), torch.logsumexp(lse, 0)


@pytest.mark.parametrize("mask", RANK_MASKS, ids=str)
def test_ranks_that_hold_keys_in_turn_merge_to_attention_over_all(batch, mask):
    call = {"causal": mask["causal"], "window_size": mask.get("window")}
    out, lse = merged([rank_call(batch, rank, **call) for rank in range(WORLD)])
    expected_out, expected_lse = batch.expected(**mask)
    batch.close(out, expected_out)
    batch.close(lse, expected_lse)


def test_ranks_decode_single_queries_as_they_are(batch):
    """No key is hidden from them, so lengths on all ranks are not needed."""
    single = {"q": batch.q[: len(NEW)], "max_seqlen_q": 1, "cp_tot_seqused_k": None}
    single |= {"cu_seqlens_q": torch.arange(len(NEW) + 1, device=batch.device), "out": None}
    assert torch.equal(
        rank_call(batch, 1, **single)[0], rank_call(batch, 1, **single, causal=False)[0]
    )


def test_ranks_take_queries_that_no_sequence_owns(batch):
    """The padding of a CUDA graph: rows behind the last sequence's."""
    q = torch.cat([batch.q, batch.q[:3]])
    out = rank_call(batch, 0, q=q, out=None)[0]
    assert torch.equal(out[: len(batch.q)], rank_call(batch, 0)[0])
    assert not out[len(batch.q) :].any()


def test_ranks_take_float8_and_batches_of_keys(batch):
    k, v = (x[batch.table.long()].flatten(1, 2) for x in (batch.k_pages, batch.v_pages))
    scale = torch.arange(1, 9, device=batch.device).view(4, 2) / 8
    k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
    call = {"q_descale": None, "k_descale": scale, "v_descale": scale, "block_table": None}
    call |= {"return_softmax_lse": True, "out": None, "cp_world_size": 2}
    ranks = []
    for rank in range(2):
        local = {"k": k[:, rank::2].contiguous(), "v": v[:, rank::2].contiguous()}
        used = (batch.used - rank + 1) // 2
        call |= {"seqused_k": used, "cp_rank": rank, "cp_tot_seqused_k": batch.used.long()}
        ranks.append(vllm_call(batch, **local, **call))
    factor = scale[:, None, :, None]
    wide = {"k": (k.float() * factor).to(batch.dtype), "v": (v.float() * factor).to(batch.dtype)}
    whole = {"block_table": None, "out": None, "return_softmax_lse": True}
    expected = vllm_call(batch, **wide, **whole)
    for ours, theirs in zip(merged(ranks), expected, strict=True):
        batch.close(ours, theirs.double().cpu())


@pytest.mark.parametrize(
    "error, sentence, changes",
    [
        (fa3.InvalidArgument, "cp_rank: expected a rank of the 2 .* got 2", {"cp_rank": 2}),
        (fa3.InvalidArgument, "cp_rank: .* the 0", {"cp_world_size": 0}),
        (fa3.InvalidArgument, "cp_tot_seqused_k: expected the lengths", {"cp_tot_seqused_k": None}),
        (
            fa3.Unsupported,
            "cu_seqlens_k: expected seqused_k",
            {"block_table": None, "seqused_k": None, "cu_seqlens_k": torch.zeros(5)},
        ),
    ],
)
def test_ranks_that_are_wrong_are_named(error, sentence, changes):
    batch = Batch("cpu")
    call = {"cp_world_size": 2, "cp_rank": 1, "cp_tot_seqused_k": batch.used}
    with pytest.raises(error, match=sentence):
        vllm_call(batch, **{**call, **changes})
