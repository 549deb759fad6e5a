# SPDX-License-Identifier: Apache-2.0
"""What a score function is: a graph (graph.py) that trace.py makes of a Python function, its
derivative, its value on tensors, and its text as CUDA."""
