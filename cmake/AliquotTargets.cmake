# aliquot_room(NAME SOURCES... [DEPENDS rooms and libraries...]): one room of the house as one static library, aliquot_NAME.
# Includes are spelled from the top of the tree ("kernels/formats/dtype.h").

add_library(aliquot_flags INTERFACE)
target_compile_features(aliquot_flags INTERFACE cxx_std_20)
target_include_directories(aliquot_flags INTERFACE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
# -Wrestrict sees overlaps that are not there in GCC 12 (bug 105651).
# A contracted a*b+c rounds once instead of twice, so two compilers or two vector widths would give two answers.
target_compile_options(aliquot_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-restrict>
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
  # Threads count at once, and a line that one of them came to must not be lost.
  target_compile_options(aliquot_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--coverage -fprofile-update=atomic -O1 -g1>)
  target_link_options(aliquot_flags INTERFACE --coverage)
endif()

# What loops over elements are compiled with. A build that looks for faults is not waited for there, and instrumented the compiler
# takes minutes for each of their files.
if(ALIQUOT_SANITIZE OR ALIQUOT_COVERAGE)
  set(ALIQUOT_LOOP_LEVEL -O1)
else()
  set(ALIQUOT_LOOP_LEVEL -O3)
endif()

# For what has vectors of AVX-512 on the stack: with the address sanitizer's frames for use after return GCC 12 takes them for aligned
# where they are not (bug 110027, mended in 14).
set(ALIQUOT_WIDE_FRAMES "")
if(ALIQUOT_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  set(ALIQUOT_WIDE_FRAMES --param=asan-use-after-return=0)
endif()

include(AliquotHardening)

function(aliquot_room name)
  cmake_parse_arguments(PARSE_ARGV 1 room "" "" "SOURCES;DEPENDS")
  if(room_SOURCES)
    add_library(aliquot_${name} STATIC ${room_SOURCES})
    target_link_libraries(aliquot_${name} PUBLIC aliquot_flags ${room_DEPENDS})
  else()
    add_library(aliquot_${name} INTERFACE)
    target_link_libraries(aliquot_${name} INTERFACE aliquot_flags ${room_DEPENDS})
  endif()
endfunction()

include(AliquotRules)
