# The installed headers: aliquot_umbrella_headers in include/aliquot/, and aliquot_public_headers, which they include.
# A visibility pragma in each public header exports its declarations. tests/package/ checks that this list is complete.
set(aliquot_umbrella_headers aliquot.h c.h checkpoint.h mpi.h rule.h rule_cuda.h split_layers.h torch.h version.h
  views.h)
set(aliquot_public_headers
  kernels/system/booking.h kernels/device/device.h kernels/device/enqueue_cuda.h kernels/device/launch_cuda.h
  kernels/device/start_kernel_cuda.h kernels/formats/dtype.h kernels/system/checkpoint_error.h kernels/system/error.h
  kernels/formats/float16.h kernels/formats/host_device.h
  kernels/elementwise/host_loops.h kernels/elementwise/kernels.h kernels/system/ledger.h kernels/system/log.h
  kernels/formats/philox.h kernels/formats/split_master.h kernels/formats/values.h
  kernels/layers/layer_rows.h kernels/layers/split_layers.h kernels/device/stream.h kernels/device/task.h
  sharding/comm/communicator.h sharding/layout.h sharding/comm/reduce_staging.h sharding/split.h sharding/state.h
  sharding/memory/symmetric_buffer.h sharding/nccl/nccl_options.h sharding/topology.h sharding/world.h
  optim/custom_loops.h optim/custom_rule.h optim/custom_rule_cuda.h optim/update/dynamic_code.h optim/loss_scaler.h
  optim/optimizer.h optim/rule.h optim/update/stochastic.h optim/update/plain_blocks.h optim/update/update.h
  optim/update/update_cuda.h optim/update/update_host.h
  optim/update/update_loop.h optim/update/update_quantised.h optim/update/update_streams.h optim/update/update_tables.h
  checkpoint/background_saver.h checkpoint/file/io_lane.h checkpoint/load.h
  checkpoint/weights/load_weights.h checkpoint/save.h checkpoint/snapshot.h
  engine/plan/activations.h
  engine/engine.h engine/run/memory/guard_range.h engine/plan/matrix_groups.h engine/plan/model_spec.h engine/options.h
  engine/plan/plan_line.h engine/run/memory/pointer_slot.h engine/plan/policy.h
  engine/plan/mesh.h engine/plan/pass_order.h engine/plan/roles.h engine/plan/schedule.h engine/plan/verbs.h
  engine/scope.h engine/view_slot.h engine/cost/simulate.h
  engine/plan/timeline.h
  libtorch/call.h libtorch/module_registry.h libtorch/module_units.h libtorch/engine_parameter.h
  libtorch/sharded_module.h)

# The headers are copied to build/public/aliquot/, and each #include "engine/engine.h" in a copy becomes
# <aliquot/engine/engine.h>. The installation installs these copies. Programs that link aliquot::aliquot in this build
# include them too, so that the folder names of this tree cannot clash with those of a user.
set(aliquot_public_folder "${PROJECT_BINARY_DIR}/public")
list(TRANSFORM aliquot_umbrella_headers PREPEND include/aliquot/ OUTPUT_VARIABLE _umbrellas)
set(_copied ${_umbrellas} ${aliquot_public_headers})
list(TRANSFORM _copied PREPEND "${PROJECT_SOURCE_DIR}/" OUTPUT_VARIABLE _sources)
set(_script "${CMAKE_CURRENT_LIST_DIR}/copy_public_headers.cmake")
list(TRANSFORM aliquot_umbrella_headers PREPEND "${aliquot_public_folder}/aliquot/" OUTPUT_VARIABLE _copies)
# Copies of headers in subfolders of checkpoint/ and optim/ omit the subfolder: checkpoint/file/io_lane.h becomes
# aliquot/checkpoint/io_lane.h, and optim/update/update.h becomes aliquot/optim/update.h.
list(TRANSFORM aliquot_public_headers REPLACE "^(checkpoint|optim)/.+/" "\\1/" OUTPUT_VARIABLE _inner_copies)
list(TRANSFORM _inner_copies PREPEND "${aliquot_public_folder}/aliquot/")
# BYPRODUCTS tells Ninja that this command writes the copies. When a copy changes, the sources that include it are
# recompiled in the same build instead of the next one.
add_custom_command(OUTPUT "${aliquot_public_folder}/copied" BYPRODUCTS ${_copies} ${_inner_copies}
  COMMAND ${CMAKE_COMMAND} "-DHEADERS=${_copied}" "-DFROM=${PROJECT_SOURCE_DIR}" "-DTO=${aliquot_public_folder}"
    -P "${_script}"
  DEPENDS ${_sources} "${_script}" "${CMAKE_CURRENT_LIST_FILE}"
  COMMENT "Copying the public headers" VERBATIM)
add_custom_target(aliquot_headers DEPENDS "${aliquot_public_folder}/copied")
