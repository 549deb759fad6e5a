#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs each wheel where nothing but numpy is, imports it, and starts its command. Of a wheel for
# another machine the command and the library run, under emulation; its Python module does not.
# Usage: tools/try_wheel.sh FOLDER WHEEL ...
set -eu

try() {
  cd "$1" # so that `import fa3` cannot find the checkout
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
}

folder=$1
shift
for wheel in "$@"; do
  rm -rf "$folder"
  case "$wheel" in
    *"_$(uname -m).whl") ;;
    *_aarch64.whl)
      python3 -m zipfile -e "$wheel" "$folder"
      chmod +x "$folder/fa3/bin/fa3"
      qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu "$folder/fa3/bin/fa3" doctor
      continue
      ;;
  esac
  python3 -m venv "$folder"
  "$folder/bin/pip" install -q --disable-pip-version-check "$wheel"
  (try "$folder")
done
