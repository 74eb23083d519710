# Simulated GPUs run the code of GPU ranks on machines without a GPU, also under sanitizers.

# aliquot_use_simulated_gpus(TARGET GPUS): links simulated_cuda.cpp as the CUDA runtime, with GPUS devices.
# TARGET must also link the host sources of the modules that it tests.
# It links the simulated libraries that it needs, such as simulated_kernels, simulated_optim and simulated_nccl.
function(aliquot_use_simulated_gpus target gpus)
  if(NOT TARGET simulated_runtime_${gpus})
    add_library(simulated_runtime_${gpus} OBJECT "${PROJECT_SOURCE_DIR}/tests/support/simulated/simulated_cuda.cpp"
      "${PROJECT_SOURCE_DIR}/tests/support/simulated/simulated_graph.cpp"
      "${PROJECT_SOURCE_DIR}/tests/support/simulated/simulated_stream.cpp")
    target_compile_definitions(simulated_runtime_${gpus} PRIVATE SIMULATED_GPUS=${gpus})
    target_link_libraries(simulated_runtime_${gpus} PRIVATE aliquot_flags PUBLIC CUDA::cudart_static)
  endif()
  target_link_libraries(${target} PRIVATE simulated_runtime_${gpus})
endfunction()

# aliquot_simulated_sources(TARGET FILE.cu...): compiles the files as C++ with the definitions of simulated_cuda_grid.h.
function(aliquot_simulated_sources target)
  foreach(source IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER "${source}" name)
    set(file "${CMAKE_CURRENT_BINARY_DIR}/simulated/${name}.cpp")
    file(CONFIGURE OUTPUT "${file}"
      CONTENT "#include \"tests/support/simulated/simulated_cuda_grid.h\"\n#include \"${source}\"\n")
    target_sources(${target} PRIVATE "${file}")
  endforeach()
  target_include_directories(${target} BEFORE PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/simulated/gpu")
  target_compile_options(${target} PRIVATE -Wno-unknown-pragmas)  # unroll
endfunction()

# aliquot_simulated_kernels(FOLDER): adds the library simulated_NAME, which has all kernels of FOLDER.
# NAME is the last path component of FOLDER.
function(aliquot_simulated_kernels folder)
  file(GLOB_RECURSE sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/${folder}/*_cuda.cu")
  get_filename_component(name "${folder}" NAME)
  add_library(simulated_${name} OBJECT)
  aliquot_simulated_sources(simulated_${name} ${sources})
  target_link_libraries(simulated_${name} PRIVATE aliquot_flags CUDA::cudart_static fmt::fmt)
endfunction()

add_library(simulated_nccl OBJECT support/simulated/simulated_nccl.cpp)
target_link_libraries(simulated_nccl PRIVATE aliquot_flags CUDA::cudart_static PUBLIC NCCL::nccl)

aliquot_simulated_kernels(kernels)
target_sources(simulated_kernels PRIVATE support/simulated/simulated_cuda_grid.cpp
  support/simulated/simulated_cuda_products.cpp support/simulated/simulated_fiber.cpp)
aliquot_simulated_kernels(optim)
aliquot_simulated_kernels(apps/models)
target_sources(simulated_models PRIVATE support/simulated/simulated_cudnn.cpp)
