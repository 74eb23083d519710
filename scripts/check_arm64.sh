#!/usr/bin/env bash
# scripts/check_arm64.sh
# Compiles the plain loops of kernels/ and optim/ for arm64, syntax only. Exit 77, with a sentence, where no cross compiler is
# installed (Debian: apt install g++-aarch64-linux-gnu).
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

compiler=${ARM64_CXX:-aarch64-linux-gnu-g++}
if ! command -v "$compiler" >/dev/null; then
  echo "skipped: $compiler is not installed, so the plain loops were not compiled for arm64"
  exit 77
fi

mapfile -t sources < <(find kernels optim -name '*_plain.cpp' | LC_ALL=C sort)
if [ ${#sources[@]} -eq 0 ]; then
  echo "skipped: there are no *_plain.cpp in kernels/ and optim/ yet"
  exit 77
fi
for source in "${sources[@]}"; do
  # Header-only libraries of this machine serve any processor, but its C library's headers must not come first.
  "$compiler" -std=c++20 -fsyntax-only -ffp-contract=off -Wall -Wextra -I. -idirafter /usr/include "$source"
done
echo "${#sources[@]} sources compile for arm64"
