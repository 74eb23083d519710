# Finds LibTorch by its files instead of its CMake package, because the CMake package of PyPI's torch needs CUDA. Works
# with Debian's package and with PyPI's torch. Defines LibTorch::torch without GPU libraries. For PyPI's torch, set
# LibTorch_ROOT to .../site-packages/torch.
# Headers of one version with libraries of another would not match: all are found below the root of the headers.
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h)
cmake_path(GET LibTorch_INCLUDE_DIR PARENT_PATH _root)
find_path(LibTorch_API_DIR torch/torch.h PATHS "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include" NO_DEFAULT_PATH)
set(_folders PATHS "${_root}" PATH_SUFFIXES lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}" NO_DEFAULT_PATH)
find_library(LibTorch_LIBRARY torch_cpu ${_folders})
find_library(LibTorch_C10_LIBRARY c10 ${_folders})
set(LibTorch_VERSION "")
foreach(_header "${LibTorch_API_DIR}/torch/version.h" "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
  if(EXISTS "${_header}")
    file(STRINGS "${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) [0-9]")
    if(_lines)
      string(REGEX REPLACE "[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2" LibTorch_VERSION "${_lines}")
    endif()
  endif()
endforeach()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch VERSION_VAR LibTorch_VERSION
  REQUIRED_VARS LibTorch_LIBRARY LibTorch_C10_LIBRARY LibTorch_API_DIR LibTorch_INCLUDE_DIR)
mark_as_advanced(LibTorch_API_DIR LibTorch_INCLUDE_DIR LibTorch_LIBRARY LibTorch_C10_LIBRARY)
if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::torch INTERFACE IMPORTED)
  set_target_properties(LibTorch::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_API_DIR};${LibTorch_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorch_API_DIR};${LibTorch_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${LibTorch_LIBRARY};${LibTorch_C10_LIBRARY}")
endif()
