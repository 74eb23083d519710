# Fails if an object file offers code that the linker may take for others: what a file compiled with AVX flags must not do.
# -DNM=nm -DOBJECTS=a.o;b.o
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "(host_loops|update)_avx")
    continue()
  endif()
  execute_process(COMMAND "${NM}" -C "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  # A sanitizer's build adds a shared pointer to the unwinder's routine, which is no code of the file's own.
  string(REGEX REPLACE "[^\n]* V DW\\.ref\\.[^\n]*" "" symbols "${symbols}")
  if(symbols MATCHES "[^\n]* [WVu] [^\n]*")
    message(FATAL_ERROR "${object} offers code compiled with AVX flags to the whole program: ${CMAKE_MATCH_0}")
  endif()
  list(APPEND seen "${object}")
endforeach()
list(LENGTH seen count)
if(count LESS 2)
  message(FATAL_ERROR "looked at ${count} object files, expected two at least")
endif()
