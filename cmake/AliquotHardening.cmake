# What compiler and linker add against mistakes with memory in our own programs and libraries, in release builds. Nothing of it
# reaches who links the library: aliquot_flags stays in this tree.
include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)
include(CheckPIESupported)
# Without the check CMake compiles programs as position independent, and leaves it to the compiler whether they are linked so.
# It changes how every program of a project is linked, so it is not for us to ask where we are a part of another's.
if(PROJECT_IS_TOP_LEVEL)
  check_pie_supported(LANGUAGES CXX OUTPUT_VARIABLE _why_no_pie)
endif()

# Sanitizers bring what is stronger, and stand in the way of fortified functions.
if(NOT ALIQUOT_HARDENING OR ALIQUOT_SANITIZE)
  return()
endif()

set(_flags "")
foreach(_flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)
  string(MAKE_C_IDENTIFIER "ALIQUOT_HAS${_flag}" _has)
  check_cxx_compiler_flag("-Werror ${_flag}" ${_has})  # an error for what the processor has not, as -fcf-protection on Arm
  if(${_has})
    list(APPEND _flags ${_flag})
  endif()
endforeach()
target_compile_options(aliquot_flags INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${_flags}>")
if(_flags)
  list(JOIN _flags "," _host_flags)
  target_compile_options(aliquot_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${_host_flags}>")
endif()

# Checked copies need the optimizer, and say so with a warning where it is off. Debian's and Ubuntu's compilers may define
# the macro themselves. Device code knows nothing of it, so not there.
if(NOT ALIQUOT_COVERAGE)
  check_cxx_compiler_flag("-Werror -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3" ALIQUOT_HAS_FORTIFY_3)
  set(_level $<IF:$<BOOL:${ALIQUOT_HAS_FORTIFY_3}>,3,2>)
  target_compile_options(aliquot_flags INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${_level}>")
endif()

# Tables of the linker are read only before main begins, and no stack can be run.
set(ALIQUOT_HARDENED_LINK "")
foreach(_word relro now noexecstack)
  check_linker_flag(CXX "-Wl,-z,${_word}" ALIQUOT_HAS_LINK_${_word})
  if(ALIQUOT_HAS_LINK_${_word})
    list(APPEND ALIQUOT_HARDENED_LINK "LINKER:-z,${_word}")
  endif()
endforeach()
target_link_options(aliquot_flags INTERFACE ${ALIQUOT_HARDENED_LINK})
