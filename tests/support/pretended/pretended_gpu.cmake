# GPUs that only pretend, so that what GPU ranks do runs, is tested and is sanitized where there is none.

# aliquot_pretend(TARGET GPUS): the CUDA runtime is pretended_cuda.cpp, with so many GPUs. Beside it a target links the kernels it needs:
# pretended_kernels, pretended_optim; pretended_nccl; and the host side of the rooms it tests.
function(aliquot_pretend target gpus)
  if(NOT TARGET pretended_runtime_${gpus})
    add_library(pretended_runtime_${gpus} OBJECT "${PROJECT_SOURCE_DIR}/tests/support/pretended/pretended_cuda.cpp")
    target_compile_definitions(pretended_runtime_${gpus} PRIVATE PRETENDED_GPUS=${gpus})
    target_link_libraries(pretended_runtime_${gpus} PRIVATE aliquot_flags PUBLIC CUDA::cudart_static)
  endif()
  target_link_libraries(${target} PRIVATE pretended_runtime_${gpus})
endfunction()

# aliquot_pretended_sources(TARGET FILE.cu...): those files, compiled as C++ with what pretended_cuda_grid.h says a kernel finds.
function(aliquot_pretended_sources target)
  foreach(source IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER "${source}" name)
    set(file "${CMAKE_CURRENT_BINARY_DIR}/pretended/${name}.cpp")
    file(CONFIGURE OUTPUT "${file}" CONTENT "#include \"tests/support/pretended/pretended_cuda_grid.h\"\n#include \"${source}\"\n")
    target_sources(${target} PRIVATE "${file}")
  endforeach()
  target_include_directories(${target} BEFORE PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/pretended/gpu")
  target_compile_options(${target} PRIVATE -Wno-unknown-pragmas)  # unroll
endfunction()

# The kernels of a folder, pretended_ and its last name.
function(aliquot_pretended_kernels folder)
  file(GLOB_RECURSE sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*_cuda.cu")
  get_filename_component(name "${folder}" NAME)
  add_library(pretended_${name} OBJECT)
  aliquot_pretended_sources(pretended_${name} ${sources})
  target_link_libraries(pretended_${name} PRIVATE aliquot_flags CUDA::cudart_static fmt::fmt)
endfunction()

add_library(pretended_nccl OBJECT support/pretended/pretended_nccl.cpp)
target_link_libraries(pretended_nccl PRIVATE aliquot_flags CUDA::cudart_static PUBLIC NCCL::nccl)

aliquot_pretended_kernels(kernels)
target_sources(pretended_kernels PRIVATE support/pretended/pretended_cuda_grid.cpp support/pretended/pretended_fiber.cpp)
aliquot_pretended_kernels(optim)
aliquot_pretended_kernels(apps/models)
target_sources(pretended_models PRIVATE support/pretended/pretended_cuda_products.cpp)
