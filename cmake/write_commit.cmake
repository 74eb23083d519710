# Writes a source with the commit of the sources, unless the file already has this text:
#   cmake -DSOURCES=folder -DOUTPUT=file [-DCOMMIT=text] -P write_commit.cmake
# COMMIT replaces the commit that Git reports, for sources that are not in a Git repository.
if(NOT COMMIT)
  execute_process(COMMAND git -C "${SOURCES}" rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  # Sources inside the repository of another project do not have its commit.
  file(REAL_PATH "${SOURCES}" folder)
  if(top STREQUAL folder)
    execute_process(COMMAND git -C "${SOURCES}" describe --always --dirty --abbrev=12 --exclude *
      OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
set(text "#include \"apps/version.h\"\n\nnamespace aliquot {\n\n")
string(APPEND text "std::string_view commit() { return \"${COMMIT}\"; }\n\n}  // namespace aliquot\n")
set(written "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" written)
endif()
if(NOT written STREQUAL text)
  file(WRITE "${OUTPUT}" "${text}")
endif()
