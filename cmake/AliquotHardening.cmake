# Compiler and linker hardening for this project's programs and libraries in release builds. The flags are private:
# aliquot_flags is not exported, so projects that link the library do not inherit them.
include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)
include(CheckPIESupported)
# check_pie_supported() makes CMake link programs with -pie; otherwise it only compiles position-independent code. The
# setting affects every program of a project, so it is not changed if Aliquot is a subproject.
if(PROJECT_IS_TOP_LEVEL)
  check_pie_supported(LANGUAGES CXX OUTPUT_VARIABLE _why_no_pie)
endif()

# Sanitizer builds are not hardened: sanitizers make stronger checks and conflict with fortified functions.
if(NOT ALIQUOT_HARDENING OR ALIQUOT_SANITIZE)
  return()
endif()

set(_flags "")
foreach(_flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)
  string(MAKE_C_IDENTIFIER "ALIQUOT_HAS${_flag}" _has)
  # Some flags are an error on some processors, for example -fcf-protection on Arm.
  check_cxx_compiler_flag("-Werror ${_flag}" ${_has})
  if(${_has})
    list(APPEND _flags ${_flag})
  endif()
endforeach()
target_compile_options(aliquot_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${_flags}>")
if(_flags)
  list(JOIN _flags "," _host_flags)
  target_compile_options(aliquot_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${_host_flags}>")
endif()

# _FORTIFY_SOURCE works only at -O1 or above, and causes a warning at -O0. Debian's and Ubuntu's compilers may predefine
# this macro. Device code does not support it.
if(NOT ALIQUOT_COVERAGE)
  check_cxx_compiler_flag("-Werror -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3" ALIQUOT_HAS_FORTIFY_3)
  set(_level $<IF:$<BOOL:${ALIQUOT_HAS_FORTIFY_3}>,3,2>)
  set(_optimized "$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>")
  target_compile_options(aliquot_flags INTERFACE
    "$<${_optimized}:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${_level}>")
endif()

# Makes the linker's tables read-only before main() and the stack non-executable.
set(ALIQUOT_HARDENED_LINK "")
foreach(_word relro now noexecstack)
  check_linker_flag(CXX "-Wl,-z,${_word}" ALIQUOT_HAS_LINK_${_word})
  if(ALIQUOT_HAS_LINK_${_word})
    list(APPEND ALIQUOT_HARDENED_LINK "LINKER:-z,${_word}")
  endif()
endforeach()
target_link_options(aliquot_flags INTERFACE ${ALIQUOT_HARDENED_LINK})
