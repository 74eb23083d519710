#!/usr/bin/env bash
# Checks that configuring fails if a test file is not a source of any target.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

mkdir -p "$scratch/tests/room"
cat >"$scratch/CMakeLists.txt" <<TXT
cmake_minimum_required(VERSION 3.25)
project(sample LANGUAGES NONE)
add_subdirectory(tests/room)
include("$top/cmake/AliquotListed.cmake")
aliquot_require_listed(tests/*_test.cpp EXCEPT "_cuda[_.]")
TXT
echo 'add_custom_target(a SOURCES a_test.cpp)' >"$scratch/tests/room/CMakeLists.txt"
touch "$scratch"/tests/room/{a_test,helper,b_cuda_test}.cpp
expect pass "" cmake -S "$scratch" -B "$scratch/build"
touch "$scratch/tests/room/forgotten_test.cpp"
expect fail "tests/room/forgotten_test.cpp" cmake -S "$scratch" -B "$scratch/build"
exit $((failures > 0))
