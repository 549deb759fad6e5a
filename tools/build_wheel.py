#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds the source distribution, and the wheel from that; imports it where nothing but numpy is
# installed, and starts its command.
# Usage: tools/try_wheel.sh VENV BUILD_DIR
set -eu

venv=$1
build=$2
wheels=$build/wheel
clean=$build/wheel-venv

rm -rf "$wheels" "$clean"
"$venv/bin/python" -c \
  "import sys; from scikit_build_core.build import build_sdist as build; build(sys.argv[1])" "$wheels"
"$venv/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$wheels" "$wheels"/*.tar.gz
python3 -m venv "$clean"
"$clean/bin/pip" install -q --disable-pip-version-check "$wheels"/*.whl
cd "$clean" # so that `import fa3` cannot find the checkout
./bin/python - <<'PYTHON'
import importlib.metadata
import sys

import fa3
import numpy as np

q = np.ones((1, 3, 2, 8), np.float32)
assert (fa3.attention(q, q, q, causal=True) == q).all()
assert "torch" not in sys.modules
requires = [r for r in importlib.metadata.requires("fa3") if "extra" not in r]
assert requires == ["numpy>=1.24"], requires
print(f"wheel: fa3 {fa3.__version__} runs with", ", ".join(requires))
PYTHON
./bin/fa3 doctor
ls -l "$OLDPWD/$wheels"
