# Rules for cmake --install (headers, both libraries, a CMake package, a pkg-config file, the command) and for cpack
# (.deb and .tar.gz).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/aliquot")

install(DIRECTORY "${aliquot_public_folder}/aliquot" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN *.h)
# Two export sets, because only users of the static library need its dependencies.
install(TARGETS aliquot_library EXPORT aliquotShared INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS aliquot_static EXPORT aliquotStatic INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT aliquotShared NAMESPACE aliquot:: DESTINATION "${_package}")
install(EXPORT aliquotStatic NAMESPACE aliquot:: DESTINATION "${_package}")
# The sources of the Fortran module are always installed. Its .mod files, for one compiler, and its library are
# installed if they were built.
set(aliquot_fortran_folder "${CMAKE_INSTALL_INCLUDEDIR}/aliquot/fortran")
install(FILES capi/fortran/aliquot_c.f90 capi/fortran/aliquot.f90 DESTINATION "${aliquot_fortran_folder}")
if(ALIQUOT_WITH_FORTRAN)
  install(FILES "${PROJECT_BINARY_DIR}/fortran/aliquot_c.mod" "${PROJECT_BINARY_DIR}/fortran/aliquot.mod"
    DESTINATION "${aliquot_fortran_folder}")
  install(FILES "$<TARGET_FILE:aliquot_fortran>" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
configure_package_config_file(cmake/aliquotConfig.cmake.in "${PROJECT_BINARY_DIR}/aliquotConfig.cmake"
  INSTALL_DESTINATION "${_package}" NO_SET_AND_CHECK_MACRO PATH_VARS aliquot_fortran_folder)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/aliquotConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/aliquotConfig.cmake" "${PROJECT_BINARY_DIR}/aliquotConfigVersion.cmake"
  cmake/AliquotRules.cmake cmake/AliquotFortran.cmake DESTINATION "${_package}")

# Computes Libs.private of the pkg-config file. Full paths and options are used unchanged; library names get the prefix
# -l.
set(_private "")
foreach(_need IN LISTS aliquot_static_needs)
  if(NOT _need MATCHES "^[-/]")
    set(_need "-l${_need}")
  endif()
  string(APPEND _private " ${_need}")
endforeach()
file(RELATIVE_PATH aliquot_up "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" /prefix)
configure_file(cmake/aliquot.pc.in "${PROJECT_BINARY_DIR}/aliquot.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/aliquot.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
if(ALIQUOT_WITH_FORTRAN)
  configure_file(cmake/aliquot-fortran.pc.in "${PROJECT_BINARY_DIR}/aliquot-fortran.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/aliquot-fortran.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()

install(FILES README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN *.md PATTERN *.svg)
install(DIRECTORY apps/examples DESTINATION "${CMAKE_INSTALL_DOCDIR}/apps"
  FILES_MATCHING PATTERN *.c PATTERN *.cpp PATTERN *.cu PATTERN *.f90 PATTERN *.h PATTERN *.py)
if(ALIQUOT_APPS)
  install(TARGETS aliquot_command)
endif()
# aliquot_printed(FILE FOLDER ARGUMENTS...): installs the output of `aliquot ARGUMENTS` as FOLDER/FILE.
function(aliquot_printed file folder)
  set(output "${PROJECT_BINARY_DIR}/printed/${file}")
  add_custom_command(OUTPUT "${output}" DEPENDS aliquot_command COMMAND aliquot_command ${ARGN} > "${output}" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY aliquot_printed_files "${output}")
  install(FILES "${output}" DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/${folder}")
endfunction()
if(ALIQUOT_APPS AND NOT CMAKE_CROSSCOMPILING)
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/printed")
  aliquot_printed(aliquot bash-completion/completions completion bash)
  aliquot_printed(_aliquot zsh/site-functions completion zsh)
  aliquot_printed(aliquot.fish fish/vendor_completions.d completion fish)
  aliquot_printed(aliquot.1 man/man1 man)
  foreach(command train data eval sample plan sweep report checkpoint doctor completion man)
    aliquot_printed(aliquot-${command}.1 man/man1 man ${command})
  endforeach()
  get_property(_printed GLOBAL PROPERTY aliquot_printed_files)
  add_custom_target(aliquot_printed_files ALL DEPENDS ${_printed})
endif()

set(CPACK_GENERATOR TGZ)
# cpack needs dpkg-shlibdeps and `file` to compute the dependencies of the .deb. Without them, cpack would fail before
# it writes the .tar.gz, so the .deb is then omitted.
find_program(ALIQUOT_DPKG_SHLIBDEPS dpkg-shlibdeps)
find_program(ALIQUOT_FILE file)
mark_as_advanced(ALIQUOT_DPKG_SHLIBDEPS ALIQUOT_FILE)
if(ALIQUOT_DPKG_SHLIBDEPS AND ALIQUOT_FILE)
  list(APPEND CPACK_GENERATOR DEB)
endif()
set(CPACK_PACKAGE_NAME aliquot)
set(CPACK_PACKAGE_CONTACT "The Aliquot developers")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Only users who link libaliquot.a need these packages.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake, libfmt-dev, libhdf5-dev, libopenmpi-dev")
include(CPack)
