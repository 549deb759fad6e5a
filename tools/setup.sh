#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes sure that the Debian packages for a purpose are there: installs them when root, otherwise
# names them and stops. Usage: tools/setup.sh command|build|deb|docs|test|arm|lint|tidy ...
set -eu

command="g++ cmake ninja-build libcli11-dev libfmt-dev nlohmann-json3-dev"
# Compilers, finders and packagers of those who use fa3; ccache, because tests build it again.
tools="clang-14 libclang-rt-14-dev pkg-config dpkg-dev ccache"
packages=""
for purpose in "$@"; do
  case "$purpose" in
    command) packages="$packages $command" ;;
    build) packages="$packages $command python3-dev" ;;
    test) packages="$packages libgtest-dev python3 python3-dev python3-venv zstd $tools" ;;
    # A cross compiler for Arm hosts, and the emulator that runs what it makes.
    arm) packages="$packages g++-aarch64-linux-gnu qemu-user-static googletest" ;;
    deb) packages="$packages dpkg-dev" ;;
    docs) packages="$packages doxygen" ;;
    lint) packages="$packages clang-format-14" ;;
    tidy) packages="$packages clang-tidy-14 clang-14" ;;
    *) echo "setup.sh: expected command, build, deb, docs, test, arm, lint or tidy, got '$purpose'" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "setup.sh: not a Debian system; make sure these are installed:$packages"
  exit 0
fi

missing=""
for package in $packages; do
  if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
    missing="$missing $package"
  fi
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "fa3 needs these Debian packages, please install them:$missing" >&2
  exit 1
fi
echo "installing$missing"
apt-get update -qq
# shellcheck disable=SC2086  # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
