# The build options. All other settings are derived from them.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug, ..." FORCE)
endif()

set(ALIQUOT_CUDA AUTO CACHE STRING "GPU parts: ON (required), OFF, AUTO (when a CUDA toolkit and NCCL are found)")
set(ALIQUOT_CUDNN AUTO CACHE STRING
  "Attention with cuDNN: ON (required), OFF, AUTO (when there are GPU parts, cuDNN and its frontend)")
set(ALIQUOT_MPI AUTO CACHE STRING "MPI world: ON (required), OFF, AUTO (when an MPI is found)")
set(_at_top_level OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(_at_top_level AUTO)
endif()
set(ALIQUOT_FORTRAN ${_at_top_level} CACHE STRING
  "Fortran module: ON (required), OFF, AUTO (when a Fortran compiler is found)")
set(ALIQUOT_TORCH ${_at_top_level} CACHE STRING
  "Tests and example of the wrapper for LibTorch modules: ON (required), OFF, AUTO (when LibTorch is found). \
LibTorch_ROOT is the folder of LibTorch")
set_property(CACHE ALIQUOT_CUDA ALIQUOT_CUDNN ALIQUOT_MPI ALIQUOT_FORTRAN ALIQUOT_TORCH PROPERTY STRINGS AUTO ON OFF)
# Maps all of CMake's spellings of true (ON, YES, 1, ...) to ON, so that each of them makes the part required.
foreach(_switch ALIQUOT_CUDA ALIQUOT_CUDNN ALIQUOT_MPI ALIQUOT_FORTRAN ALIQUOT_TORCH)
  string(TOUPPER "${${_switch}}" _word)
  if(_word MATCHES "^(ON|1|YES|Y|TRUE)$")
    set(${_switch} ON)
  elseif(_word MATCHES "^(OFF|0|NO|N|FALSE|)$")
    set(${_switch} OFF)
  elseif(_word STREQUAL "AUTO")
    set(${_switch} AUTO)
  else()
    message(FATAL_ERROR "invalid value \"${${_switch}}\" for ${_switch}: expected ON, OFF or AUTO")
  endif()
endforeach()
option(ALIQUOT_APPS "Build the aliquot command; only the command needs Boost" ${PROJECT_IS_TOP_LEVEL})
option(ALIQUOT_INSTALL "Install the library, and the command if it is built" ${PROJECT_IS_TOP_LEVEL})
option(ALIQUOT_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ALIQUOT_BENCHES "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
set(ALIQUOT_COMMIT "" CACHE STRING "Commit that aliquot --version prints; empty: that of the Git repository")
option(ALIQUOT_WARNINGS_AS_ERRORS "Treat compiler warnings as errors" OFF)
if((ALIQUOT_TESTS OR ALIQUOT_BENCHES) AND NOT ALIQUOT_APPS)
  message(FATAL_ERROR
    "ALIQUOT_APPS is OFF, but tests and benchmarks need it: set ALIQUOT_TESTS and ALIQUOT_BENCHES to OFF too")
endif()
option(ALIQUOT_HARDENING
  "Harden programs and libraries: stack protector, fortified functions, RELRO; ignored with sanitizers" ON)
set(ALIQUOT_SANITIZE "" CACHE STRING "Value of -fsanitize=: address,undefined or thread; empty for none")
option(ALIQUOT_FUZZ "Build the fuzz targets for libFuzzer; needs Clang (scripts/fuzz.sh builds and runs them)" OFF)
option(ALIQUOT_COVERAGE "Instrument for gcov" OFF)

if(ALIQUOT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR
      "ALIQUOT_FUZZ needs Clang, but the compiler is ${CMAKE_CXX_COMPILER_ID}: set -DCMAKE_CXX_COMPILER=clang++")
  endif()
  # All code is instrumented for the fuzzer and the sanitizers.
  set(ALIQUOT_SANITIZE "fuzzer-no-link,address,undefined")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Symbols are hidden by default. Headers listed in cmake/AliquotPublicHeaders.cmake export their declarations by a
# visibility pragma.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
