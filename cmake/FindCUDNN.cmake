# Finds the headers of cuDNN and of its frontend, which is header-only. Programs load the library of cuDNN at run time.
# Sets CUDNN_FOUND, CUDNN_VERSION and CUDNN_FRONTEND_VERSION, and defines the target CUDNN::headers. Searches
# CUDNN_ROOT, CUDNN_FRONTEND_ROOT and the folders of the CUDA toolkit.
find_path(CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend_version.h
  HINTS ${CUDNN_FRONTEND_ROOT} ENV CUDNN_FRONTEND_ROOT ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)

# Sets `result` to the version that the macros MAJOR, MINOR and PATCH of `file` define.
function(_cudnn_version file prefix suffixes result)
  set(version "")
  file(STRINGS "${file}" lines REGEX "^#define ${prefix}(MAJOR|MINOR|PATCH)")
  foreach(part IN LISTS suffixes)
    string(REGEX MATCH "#define ${prefix}${part} +([0-9]+)" found "${lines}")
    string(APPEND version ".${CMAKE_MATCH_1}")
  endforeach()
  string(SUBSTRING "${version}" 1 -1 version)
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

if(CUDNN_INCLUDE_DIR)
  _cudnn_version("${CUDNN_INCLUDE_DIR}/cudnn_version.h" CUDNN_ "MAJOR;MINOR;PATCHLEVEL" CUDNN_VERSION)
endif()
set(_cudnn_frontend_is_new OFF)
if(CUDNN_FRONTEND_INCLUDE_DIR)
  _cudnn_version("${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h" CUDNN_FRONTEND_
    "MAJOR_VERSION;MINOR_VERSION;PATCH_VERSION" CUDNN_FRONTEND_VERSION)
  # The first version with which the sources were compiled.
  if(CUDNN_FRONTEND_VERSION VERSION_GREATER_EQUAL 1.32)
    set(_cudnn_frontend_is_new ON)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR _cudnn_frontend_is_new
  VERSION_VAR CUDNN_VERSION)
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_FRONTEND_INCLUDE_DIR)

if(CUDNN_FOUND AND NOT TARGET CUDNN::headers)
  add_library(CUDNN::headers INTERFACE IMPORTED)
  set_target_properties(CUDNN::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CUDNN_FRONTEND_INCLUDE_DIR};${CUDNN_INCLUDE_DIR}")
endif()
