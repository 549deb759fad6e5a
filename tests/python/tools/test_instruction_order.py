# SPDX-License-Identifier: Apache-2.0
"""instruction_order.py: the shortest way round the innermost loop with both products."""

import json
import sys

from builds import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import instruction_order

# A loop with a branch of one maximum more, inside of a loop of tiles, as nvdisasm prints them.
LISTING = """
        .section .text.kernel
        /*0000*/                   MOV R1, R2 ;
.L_x_9:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
.L_x_1:
        /*0020*/                   HGMMA.64x80x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R64, R4, gdesc[UR8], R64, gsb0 ;
        /*0040*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0050*/              @!P1 BRA `(.L_x_2) ;
        /*0060*/                   FMNMX R3, R24, R25, !PT ;
        /*0070*/                   FMNMX R3, R3, R26, !PT ;
        /*0080*/                   FFMA R24, R24, R2, -R3 ;
        /*0090*/                   MUFU.EX2 R24, R24 ;
        /*00a0*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*00b0*/                   FFMA R24, R24, R2, -R0 ;
        /*00c0*/                   MUFU.EX2 R24, R24 ;
.L_x_3:
        /*00d0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00e0*/                   F2FP.BF16.F32.PACK_AB R4, R25, R24 ;
        /*00f0*/               @P0 BRA `(.L_x_1) ;
        /*0100*/                   MUFU.RCP R5, R6 ;
        /*0110*/              @!P2 BRA `(.L_x_9) ;
        /*0120*/                   EXIT ;
"""


def test_the_main_loop_is_the_innermost_one_and_its_way_the_shortest():
    ((name, listing),) = instruction_order.functions(LISTING).items()
    code = instruction_order.Code.of(listing)
    way = code.shortest_way()
    assert name == "kernel"
    assert "".join(map(instruction_order.kind, way)) == "QP1.fx0c."
    assert [hex(one.address) for one in way][:5] == ["0x20", "0x30", "0x40", "0x50", "0xb0"]


def test_a_way_of_the_maximum_is_taken_where_there_is_no_other():
    listing = LISTING.replace("@!P1 BRA `(.L_x_2)", "     FADD R3, R3, R3")
    (listing,) = instruction_order.functions(listing).values()
    way = instruction_order.Code.of(listing).shortest_way()
    assert "".join(map(instruction_order.kind, way)) == "QP1ammfx.0c."


def test_committed_orders_have_the_products_and_exponentials_of_their_tiles():
    path = ROOT / "docs/lab/results/instruction-order-2026-11-29.jsonl"
    for row in map(json.loads, path.read_text().splitlines()):
        block_n = int(row["tile"].split("x")[1])
        count = {letter: row["order"].count(letter) for letter in "QPx10"}
        expected = {"Q": row["head_dim"] // 16, "P": block_n // 16, "x": block_n // 2}
        assert count == expected | {"1": 1, "0": 1}
        assert set(row["order"]) <= set(instruction_order.KINDS)
