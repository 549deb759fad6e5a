# SPDX-License-Identifier: Apache-2.0
"""How rows get from rank to rank.

exchange.py has messages of the group's backend, keys.py what they carry: keys to a stage, gradients
home. Where ranks write into each other's memory, peers.py has the protocol, peer_keys.py the same
two ways, device_memory.py the memory of GPUs, watch.py the end of a process that waits for ever.
"""
