#!/usr/bin/env bash
# scripts/check_arm64.sh
# Checks that the plain loops of kernels/ and optim/ compile for arm64 (syntax only). Exit code 77, with a message: no
# cross compiler is installed (Debian: apt install g++-aarch64-linux-gnu).
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

compiler=${ARM64_CXX:-aarch64-linux-gnu-g++}
if ! command -v "$compiler" >/dev/null; then
  echo "skipped: $compiler is not installed, so the plain loops were not compiled for arm64"
  exit 77
fi

mapfile -t sources < <(find kernels optim -name '*_plain.cpp' | LC_ALL=C sort)
if [ ${#sources[@]} -eq 0 ]; then
  echo "skipped: kernels/ and optim/ contain no *_plain.cpp"
  exit 77
fi
for source in "${sources[@]}"; do
  # -idirafter makes header-only libraries of this machine available, after the C library headers for arm64.
  "$compiler" -std=c++20 -fsyntax-only -ffp-contract=off -Wall -Wextra -I. -idirafter /usr/include "$source"
done
echo "${#sources[@]} sources compile for arm64"
