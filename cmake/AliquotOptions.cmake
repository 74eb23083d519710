# What a person may choose. Everything else follows from it.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug, ..." FORCE)
endif()

set(ALIQUOT_CUDA AUTO CACHE STRING "GPU parts: ON (required), OFF, AUTO (when a CUDA toolkit and NCCL are found)")
set(ALIQUOT_MPI AUTO CACHE STRING "MPI world: ON (required), OFF, AUTO (when an MPI is found)")
set_property(CACHE ALIQUOT_CUDA ALIQUOT_MPI PROPERTY STRINGS AUTO ON OFF)
option(ALIQUOT_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ALIQUOT_BENCHES "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(ALIQUOT_WARNINGS_AS_ERRORS "Treat compiler warnings as errors" OFF)
set(ALIQUOT_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them: address, undefined, thread")
option(ALIQUOT_FUZZ "Build the fuzz targets for libFuzzer; needs Clang (scripts/fuzz.sh does it all)" OFF)
option(ALIQUOT_COVERAGE "Instrument for gcov" OFF)

if(ALIQUOT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "ALIQUOT_FUZZ needs Clang, for its libFuzzer: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  # Everything reports its branches to the fuzzer, under the sanitizers.
  set(ALIQUOT_SANITIZE "fuzzer-no-link,address,undefined")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
