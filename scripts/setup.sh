#!/usr/bin/env bash
# scripts/setup.sh [--dev] [--torch]
# Installs missing packages for building and testing with apt, as root or with sudo. Returns at once if none is missing.
# --dev adds the tools of scripts/check.sh and gfortran, --torch adds LibTorch. Written for Debian 12; Ubuntu 24.04 has
# packages of the same names. Does not install a CUDA toolkit; the build uses an installed one, with its NCCL.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

packages=(build-essential cmake ninja-build git
  libopenmpi-dev openmpi-bin libhdf5-dev hdf5-tools libboost-program-options-dev
  nlohmann-json3-dev libfmt-dev zlib1g-dev libgtest-dev libgmock-dev libbenchmark-dev
  iproute2 procps)
# The version of the formatter is pinned, because other versions format code differently.
dev_packages=(clang-format-14 clang-tidy-14 cppcheck shellcheck g++-aarch64-linux-gnu gfortran xz-utils)

for argument in "$@"; do
  case $argument in
    --dev) packages+=("${dev_packages[@]}") ;;
    --torch) packages+=(libtorch-dev) ;;
    --help | -h) usage && exit ;;
    *) fail 1 "unknown option $argument (see --help)" ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  echo "This system has no dpkg, so no packages were checked or installed. Required Debian packages: ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  if [ "$state" != installed ]; then missing+=("$package"); fi
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "Missing packages: ${missing[*]}. Installing them requires root or sudo; continuing without them."
    exit 0
  fi
  as_root=(sudo)
fi

echo "Installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" </dev/null >>"$log" 2>&1; }
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }; then
  tail -n 30 "$log" >&2
  fail 1 "apt could not install ${missing[*]} (the end of its output is above)"
fi
