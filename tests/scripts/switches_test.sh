#!/usr/bin/env bash
# Checks that configuring obeys ALIQUOT_CUDA, ALIQUOT_MPI, ALIQUOT_FORTRAN and ALIQUOT_TORCH, or fails with a reason.
# All packages are simulated.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

mkdir -p "$scratch/modules"
for package in Threads fmt nlohmann_json HDF5 Boost ZLIB GTest benchmark; do
  echo "set(${package}_FOUND ON)" >"$scratch/modules/Find$package.cmake"
done
# The optional packages exist only if a test sets SIMULATED_PACKAGE.
for package in MPI CUDAToolkit NCCL LibTorch; do
  echo "set(${package}_FOUND \${SIMULATED_$package})" >"$scratch/modules/Find$package.cmake"
done
# shellcheck disable=SC2016
echo 'set(MPI_C_FOUND ${SIMULATED_MPI})' >>"$scratch/modules/FindMPI.cmake"
# shellcheck disable=SC2016
printf 'macro(check_language)\n  set(CMAKE_CUDA_COMPILER ${SIMULATED_nvcc})\nendmacro()\n' \
  >"$scratch/modules/CheckLanguage.cmake"
# shellcheck disable=SC2016
printf 'macro(check_cxx_source_compiles source variable)\n  set(${variable} ${SIMULATED_link})\nendmacro()\n' \
  >"$scratch/modules/CheckCXXSourceCompiles.cmake"
cat >"$scratch/CMakeLists.txt" <<TXT
cmake_minimum_required(VERSION 3.25)
project(sample LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH "$scratch/modules")
include("$top/cmake/AliquotOptions.cmake")
include("$top/cmake/AliquotDependencies.cmake")
message(STATUS "MPI \${ALIQUOT_WITH_MPI}: \${ALIQUOT_MPI_WHY}; CUDA \${ALIQUOT_WITH_CUDA}: \${ALIQUOT_CUDA_WHY}")
message(STATUS "Fortran \${ALIQUOT_WITH_FORTRAN}: \${ALIQUOT_FORTRAN_WHY}; LibTorch \${ALIQUOT_WITH_TORCH}: \${ALIQUOT_TORCH_WHY}")
TXT
# configured ARGUMENTS...: configures in a new folder, so that nothing is cached.
# shellcheck disable=SC2317  # expect calls it
configured() {
  rm -rf "$scratch/build"
  cmake -S "$scratch" -B "$scratch/build" -DALIQUOT_CUDA=OFF -DALIQUOT_MPI=OFF -DALIQUOT_FORTRAN=OFF -DALIQUOT_TORCH=OFF "$@" 2>&1 | tr -s ' \n' ' '
}

for word in ON on 1 TRUE yes; do
  expect fail "ALIQUOT_MPI is ON, but no MPI was found" configured "-DALIQUOT_MPI=$word"
  expect fail "ALIQUOT_CUDA is ON, but these were not found: nvcc" configured "-DALIQUOT_CUDA=$word"
done
for word in OFF off 0 FALSE no ''; do
  expect pass "MPI OFF: ALIQUOT_MPI is OFF" configured "-DALIQUOT_MPI=$word" -DSIMULATED_MPI=ON
  expect pass "CUDA OFF: ALIQUOT_CUDA is OFF" configured "-DALIQUOT_CUDA=$word" -DSIMULATED_nvcc=nvcc
done
expect pass "MPI ON:" configured -DALIQUOT_MPI=true -DSIMULATED_MPI=ON
expect pass "MPI OFF: no MPI was found" configured -DALIQUOT_MPI=auto
expect fail 'invalid value "maybe" for ALIQUOT_CUDA: expected ON, OFF or AUTO' configured -DALIQUOT_CUDA=maybe
expect fail 'invalid value "2" for ALIQUOT_MPI: expected ON, OFF or AUTO' configured -DALIQUOT_MPI=2
expect fail "ALIQUOT_FORTRAN is ON, but no Fortran compiler was found" configured -DALIQUOT_FORTRAN=ON
expect pass "Fortran OFF: no Fortran compiler was found" configured -DALIQUOT_FORTRAN=AUTO
expect pass "Fortran OFF: ALIQUOT_FORTRAN is OFF" configured
expect pass "Fortran OFF: not built with sanitizers" configured -DALIQUOT_FORTRAN=AUTO -DALIQUOT_SANITIZE=address
expect pass "LibTorch ON:" configured -DALIQUOT_TORCH=AUTO -DSIMULATED_LibTorch=ON -DSIMULATED_link=ON
expect pass "LibTorch OFF: a program of this compiler does not link with" \
  configured -DALIQUOT_TORCH=AUTO -DSIMULATED_LibTorch=ON -DSIMULATED_link=OFF
expect fail "ALIQUOT_TORCH is ON, but a program of this compiler does not link with" \
  configured -DALIQUOT_TORCH=ON -DSIMULATED_LibTorch=ON -DSIMULATED_link=OFF
expect pass "LibTorch OFF: no LibTorch was found" configured -DALIQUOT_TORCH=AUTO
expect pass "LibTorch OFF: ALIQUOT_TORCH is OFF" configured -DSIMULATED_LibTorch=ON
expect pass "LibTorch OFF: not built with sanitizers" \
  configured -DALIQUOT_TORCH=AUTO -DSIMULATED_LibTorch=ON -DALIQUOT_SANITIZE=thread
expect fail "ALIQUOT_TORCH is ON, but no LibTorch was found" configured -DALIQUOT_TORCH=ON
expect pass "CUDA OFF: not found: the CUDA toolkit of nvcc" \
  configured -DALIQUOT_CUDA=AUTO -DSIMULATED_nvcc=nvcc -DSIMULATED_NCCL=ON
expect fail "not found: the CUDA toolkit of nvcc" \
  configured -DALIQUOT_CUDA=ON -DSIMULATED_nvcc=nvcc -DSIMULATED_NCCL=ON

# The headers and libraries of LibTorch come from one folder.
mkdir -p "$scratch/find" "$scratch"/{whole,headers,libraries}/lib "$scratch"/{whole,headers}/include/{ATen,torch/csrc/api/include/torch}
touch "$scratch"/{whole,headers}/include/{ATen/ATen.h,torch/csrc/api/include/torch/torch.h}
touch "$scratch"/{whole,libraries}/lib/lib{torch_cpu,c10}.so
cat >"$scratch/find/CMakeLists.txt" <<TXT
cmake_minimum_required(VERSION 3.25)
project(sample LANGUAGES NONE)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
list(APPEND CMAKE_MODULE_PATH "$top/cmake")
find_package(LibTorch QUIET)
message(STATUS "found: '\${LibTorch_FOUND}' \${LibTorch_API_DIR} \${LibTorch_C10_LIBRARY}")
TXT
# found FOLDERS: looks for LibTorch in these folders.
# shellcheck disable=SC2317  # expect calls it
found() {
  rm -rf "$scratch/build"
  cmake -S "$scratch/find" -B "$scratch/build" "-DCMAKE_PREFIX_PATH=$1" 2>&1
}
expect pass "found: 'TRUE' $scratch/whole/include/torch/csrc/api/include $scratch/whole/lib/libc10.so" \
  found "$scratch/libraries;$scratch/whole"
expect pass "found: 'FALSE'" found "$scratch/headers;$scratch/libraries"
exit $((failures > 0))
