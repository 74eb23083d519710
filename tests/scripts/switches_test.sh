#!/usr/bin/env bash
# What ALIQUOT_CUDA and ALIQUOT_MPI say is taken, or configuring fails with a reason. Every package is pretended.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

mkdir -p "$scratch/modules"
for package in Threads fmt nlohmann_json HDF5 Boost GTest benchmark; do
  echo "set(${package}_FOUND ON)" >"$scratch/modules/Find$package.cmake"
done
# Those that a build may do without are here if the test says so.
for package in MPI CUDAToolkit NCCL; do
  echo "set(${package}_FOUND \${PRETEND_$package})" >"$scratch/modules/Find$package.cmake"
done
# shellcheck disable=SC2016
echo 'set(MPI_C_FOUND ${PRETEND_MPI})' >>"$scratch/modules/FindMPI.cmake"
# shellcheck disable=SC2016
printf 'macro(check_language)\n  set(CMAKE_CUDA_COMPILER ${PRETEND_nvcc})\nendmacro()\n' >"$scratch/modules/CheckLanguage.cmake"
cat >"$scratch/CMakeLists.txt" <<TXT
cmake_minimum_required(VERSION 3.25)
project(sample LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH "$scratch/modules")
include("$top/cmake/AliquotOptions.cmake")
include("$top/cmake/AliquotDependencies.cmake")
message(STATUS "MPI \${ALIQUOT_WITH_MPI}: \${ALIQUOT_MPI_WHY}; CUDA \${ALIQUOT_WITH_CUDA}: \${ALIQUOT_CUDA_WHY}")
TXT
# configured WORDS...: in a folder of its own, as nothing may be remembered.
# shellcheck disable=SC2317  # expect calls it
configured() { rm -rf "$scratch/build" && cmake -S "$scratch" -B "$scratch/build" -DALIQUOT_CUDA=OFF -DALIQUOT_MPI=OFF "$@" 2>&1 | tr -s ' \n' ' '; }

for word in ON on 1 TRUE yes; do
  expect fail "ALIQUOT_MPI is ON and no MPI was found" configured "-DALIQUOT_MPI=$word"
  expect fail "ALIQUOT_CUDA is ON and this is missing: nvcc" configured "-DALIQUOT_CUDA=$word"
done
for word in OFF off 0 FALSE no ''; do
  expect pass "MPI OFF: ALIQUOT_MPI is OFF" configured "-DALIQUOT_MPI=$word" -DPRETEND_MPI=ON
  expect pass "CUDA OFF: ALIQUOT_CUDA is OFF" configured "-DALIQUOT_CUDA=$word" -DPRETEND_nvcc=nvcc
done
expect pass "MPI ON:" configured -DALIQUOT_MPI=true -DPRETEND_MPI=ON
expect pass "MPI OFF: no MPI was found" configured -DALIQUOT_MPI=auto
expect fail 'ALIQUOT_CUDA is "maybe"; it takes ON, OFF or AUTO' configured -DALIQUOT_CUDA=maybe
expect fail 'ALIQUOT_MPI is "2"; it takes ON, OFF or AUTO' configured -DALIQUOT_MPI=2
expect pass "CUDA OFF: not found: the CUDA toolkit beside nvcc" configured -DALIQUOT_CUDA=AUTO -DPRETEND_nvcc=nvcc -DPRETEND_NCCL=ON
expect fail "missing: the CUDA toolkit beside nvcc" configured -DALIQUOT_CUDA=ON -DPRETEND_nvcc=nvcc -DPRETEND_NCCL=ON
exit $((failures > 0))
