# Combines all modules except apps/ and the header-only libtorch/ into one library: aliquot::aliquot (shared) and
# aliquot::static. Both reuse the modules' object files, so nothing is compiled twice. Dependencies are private: linking
# the shared library needs only a C++20 compiler.
include(AliquotPublicHeaders)

set(_objects "")
foreach(_module kernels sharding optim checkpoint engine capi)
  list(APPEND _objects $<TARGET_OBJECTS:aliquot_${_module}>)
endforeach()
set(_dependencies Threads::Threads fmt::fmt ${HDF5_C_LIBRARIES} ${CMAKE_DL_LIBS})
# Dependencies as library files, for the static library. Its users need no find_package() and no language besides C++.
get_target_property(_fmt fmt::fmt LOCATION)
set(aliquot_static_needs "${_fmt}" ${HDF5_C_LIBRARIES} -pthread ${CMAKE_DL_LIBS})
if(ALIQUOT_WITH_MPI)
  list(APPEND _dependencies MPI::MPI_C)
  list(APPEND aliquot_static_needs ${MPI_C_LIBRARIES})
endif()
if(ALIQUOT_WITH_CUDA)
  get_target_property(_cudart CUDA::cudart_static LOCATION)
  list(APPEND _dependencies NCCL::nccl CUDA::cudart_static)
  list(APPEND aliquot_static_needs "${NCCL_LIBRARY}" "${_cudart}" rt)
endif()

add_library(aliquot_library SHARED ${_objects})
target_link_libraries(aliquot_library PRIVATE ${_dependencies})
set(_map "${PROJECT_BINARY_DIR}/aliquot.map")
configure_file("${CMAKE_CURRENT_LIST_DIR}/aliquot.map.in" "${_map}" @ONLY)
target_link_options(aliquot_library PRIVATE "LINKER:--version-script=${_map}" LINKER:--as-needed
  ${ALIQUOT_HARDENED_LINK})
if(ALIQUOT_SANITIZE)
  target_link_options(aliquot_library PRIVATE -fsanitize=${ALIQUOT_SANITIZE})
else()
  target_link_options(aliquot_library PRIVATE LINKER:--no-undefined)
endif()
if(ALIQUOT_COVERAGE)
  target_link_options(aliquot_library PRIVATE --coverage)
endif()
# Before version 1.0 every minor version may change the ABI.
set_target_properties(aliquot_library PROPERTIES EXPORT_NAME aliquot OUTPUT_NAME aliquot LINK_DEPENDS "${_map}"
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

add_library(aliquot_static STATIC ${_objects})
target_link_libraries(aliquot_static INTERFACE ${aliquot_static_needs})
set_target_properties(aliquot_static PROPERTIES EXPORT_NAME static OUTPUT_NAME aliquot)

foreach(_library aliquot_library aliquot_static)
  add_dependencies(${_library} aliquot_headers)
  target_compile_features(${_library} INTERFACE cxx_std_20)
  target_include_directories(${_library} INTERFACE "$<BUILD_INTERFACE:${aliquot_public_folder}>")
  set_target_properties(${_library} PROPERTIES LINKER_LANGUAGE CXX ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
endforeach()
add_library(aliquot::aliquot ALIAS aliquot_library)
add_library(aliquot::static ALIAS aliquot_static)
