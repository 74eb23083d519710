# Fails if an object file compiled with AVX flags defines a weak symbol. The linker could choose that copy for the whole
# program, which would then crash on processors without AVX.
# Usage: cmake -DNM=nm "-DOBJECTS=a.o;b.o" -P no_weak_symbols.cmake
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "(host_loops|update)_avx")
    continue()
  endif()
  execute_process(COMMAND "${NM}" -C "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  # Sanitizer builds add a weak pointer to the unwinder's routine. It is not code of this file.
  string(REGEX REPLACE "[^\n]* V DW\\.ref\\.[^\n]*" "" symbols "${symbols}")
  if(symbols MATCHES "[^\n]* [WVu] [^\n]*")
    message(FATAL_ERROR
      "${object} is compiled with AVX flags and defines a weak symbol, which the linker may choose for "
      "the whole program: ${CMAKE_MATCH_0}")
  endif()
  list(APPEND seen "${object}")
endforeach()
list(LENGTH seen count)
if(count LESS 2)
  message(FATAL_ERROR "found ${count} object files compiled with AVX flags in OBJECTS, expected at least 2")
endif()
