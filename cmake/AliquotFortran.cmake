# Defines aliquot::fortran, module aliquot for Fortran programs, for find_package(aliquot COMPONENTS fortran). The
# project compiles the module from its installed source, because each compiler has its own format of .mod files.
# ALIQUOT_FORTRAN_SOURCES is the folder of the source.
if(NOT CMAKE_Fortran_COMPILER_LOADED)
  set(aliquot_fortran_FOUND FALSE)
  list(APPEND aliquot_NOT_FOUND_MESSAGE
    "the component fortran needs the language Fortran: project(... LANGUAGES Fortran) or enable_language(Fortran)")
  return()
endif()
set(aliquot_fortran_FOUND TRUE)
if(TARGET aliquot::fortran)
  return()
endif()
# Only the directory that imported a target can make it global.
get_directory_property(_imported IMPORTED_TARGETS)
if("aliquot::aliquot" IN_LIST _imported)
  set_target_properties(aliquot::aliquot PROPERTIES IMPORTED_GLOBAL TRUE)
endif()
add_library(aliquot_fortran STATIC EXCLUDE_FROM_ALL "${ALIQUOT_FORTRAN_SOURCES}/aliquot_c.f90"
  "${ALIQUOT_FORTRAN_SOURCES}/aliquot.f90")
add_library(aliquot::fortran ALIAS aliquot_fortran)
set_target_properties(aliquot_fortran PROPERTIES POSITION_INDEPENDENT_CODE ON
  Fortran_MODULE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/aliquot_fortran")
target_include_directories(aliquot_fortran INTERFACE "${CMAKE_CURRENT_BINARY_DIR}/aliquot_fortran")
target_link_libraries(aliquot_fortran PUBLIC aliquot::aliquot)
target_compile_options(aliquot_fortran PRIVATE $<$<Fortran_COMPILER_ID:GNU>:-frecursive>)
