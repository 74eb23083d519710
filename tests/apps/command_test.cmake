# Runs PROGRAM and checks its exit code, and that its output contains the text SAYS:
#   cmake -DPROGRAM=.. -DARGUMENTS=a|b -DCODE=n -DSAYS=text -P command_test.cmake
string(REPLACE "|" ";" arguments "${ARGUMENTS}")
execute_process(COMMAND "${PROGRAM}" ${arguments} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(NOT code EQUAL CODE)
  message(FATAL_ERROR "exit code ${code}, expected ${CODE}\n${out}${err}")
endif()
string(FIND "${out}${err}" "${SAYS}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "expected '${SAYS}' in the output:\n${out}${err}")
endif()
