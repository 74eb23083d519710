# aliquot_module(NAME SOURCES... [DEPENDS modules and libraries...]): defines one module as the static library
# aliquot_NAME. Includes are spelled from the top of the tree ("kernels/formats/dtype.h").

add_library(aliquot_flags INTERFACE)
target_compile_features(aliquot_flags INTERFACE cxx_std_20)
target_include_directories(aliquot_flags INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
# -ffp-contract=off: a fused a*b+c rounds once instead of twice, so results would depend on the compiler and the vector
# width. -Wno-restrict: GCC 12 reports false positives (bug 105651).
target_compile_options(aliquot_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wconversion>
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-sign-conversion -Wno-restrict>
  $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false -Xcompiler=-Wall,-Wextra,-ffp-contract=off>)
if(ALIQUOT_WARNINGS_AS_ERRORS)
  target_compile_options(aliquot_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(ALIQUOT_SANITIZE)
  target_compile_options(aliquot_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ALIQUOT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1>)
  target_link_options(aliquot_flags INTERFACE -fsanitize=${ALIQUOT_SANITIZE})
endif()
if(ALIQUOT_COVERAGE)
  # Threads update coverage counters concurrently, and no update may be lost.
  target_compile_options(aliquot_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--coverage -fprofile-update=atomic -O1 -g1>)
  target_link_options(aliquot_flags INTERFACE --coverage)
endif()

# Optimization level of the files with loops over elements. Builds with sanitizers or coverage use -O1: their speed does
# not matter, and at -O3 each of these files would take minutes to compile.
if(ALIQUOT_SANITIZE OR ALIQUOT_COVERAGE)
  set(ALIQUOT_LOOP_LEVEL -O1)
else()
  set(ALIQUOT_LOOP_LEVEL -O3)
endif()

# ALIQUOT_WIDE_FRAMES has the compile flags of sources with AVX-512 vectors on the stack. With the address sanitizer's
# use-after-return frames, GCC 12 wrongly assumes that these vectors are aligned (bug 110027, fixed in GCC 14).
set(ALIQUOT_WIDE_FRAMES "")
if(ALIQUOT_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL GNU
    AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  set(ALIQUOT_WIDE_FRAMES --param=asan-use-after-return=0)
endif()

include(AliquotHardening)

function(aliquot_module name)
  cmake_parse_arguments(PARSE_ARGV 1 module "" "" "SOURCES;DEPENDS")
  if(module_SOURCES)
    add_library(aliquot_${name} STATIC ${module_SOURCES})
    target_link_libraries(aliquot_${name} PUBLIC aliquot_flags ${module_DEPENDS})
  else()
    add_library(aliquot_${name} INTERFACE)
    target_link_libraries(aliquot_${name} INTERFACE aliquot_flags ${module_DEPENDS})
  endif()
endfunction()

include(AliquotRules)
