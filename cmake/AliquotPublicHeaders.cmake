# The headers that are installed: what a user includes, include/aliquot/, and what these include, no more. Each of the latter is
# exported whole, by the visibility pragma around its namespace, so that declaring something there is all it takes.
# tests/package/ holds the list to that.
set(aliquot_umbrella_headers aliquot.h c.h checkpoint.h rule.h rule_cuda.h torch.h)
set(aliquot_public_headers
  kernels/system/booking.h kernels/device/device.h kernels/device/enqueue_cuda.h kernels/device/launch_cuda.h kernels/device/start_kernel_cuda.h kernels/formats/dtype.h kernels/system/checkpoint_error.h kernels/system/error.h kernels/formats/float16.h kernels/formats/host_device.h
  kernels/elementwise/host_loops.h kernels/elementwise/kernels.h kernels/system/ledger.h kernels/system/log.h kernels/formats/philox.h kernels/formats/split_master.h kernels/device/stream.h
  kernels/device/task.h
  sharding/comm/communicator.h sharding/layout.h sharding/comm/reduce_staging.h sharding/state.h sharding/memory/symmetric_buffer.h sharding/topology.h
  sharding/world.h
  optim/custom_loops.h optim/custom_rule.h optim/custom_rule_cuda.h optim/update/dynamic_code.h optim/loss_scaler.h
  optim/optimizer.h optim/rule.h optim/update/stochastic.h optim/update/plain_blocks.h optim/update/update.h optim/update/update_cuda.h optim/update/update_host.h
  optim/update/update_loop.h optim/update/update_quantised.h optim/update/update_streams.h optim/update/update_tables.h
  checkpoint/background_saver.h checkpoint/file/io_lane.h checkpoint/load.h
  checkpoint/weights/load_weights.h checkpoint/save.h checkpoint/snapshot.h
  engine/plan/activations.h
  engine/engine.h engine/run/memory/guard_range.h engine/plan/matrix_groups.h engine/plan/model_spec.h engine/options.h engine/plan/plan_line.h engine/run/memory/pointer_slot.h engine/plan/policy.h
  engine/plan/roles.h engine/plan/schedule.h engine/plan/verbs.h engine/scope.h engine/cost/simulate.h engine/plan/timeline.h
  libtorch/call.h libtorch/module_registry.h libtorch/module_units.h libtorch/parameter_home.h libtorch/sharded_module.h)

# Users find them all under <aliquot/...>: copies in which the spelling of the tree, "engine/engine.h", became <aliquot/engine/engine.h>.
# Built and installed users read the same copies, so neither sees a folder whose names could be taken for their own.
set(aliquot_public_folder "${PROJECT_BINARY_DIR}/public")
list(TRANSFORM aliquot_umbrella_headers PREPEND include/aliquot/ OUTPUT_VARIABLE _umbrellas)
set(_copied ${_umbrellas} ${aliquot_public_headers})
list(TRANSFORM _copied PREPEND "${PROJECT_SOURCE_DIR}/" OUTPUT_VARIABLE _sources)
set(_script "${CMAKE_CURRENT_LIST_DIR}/copy_public_headers.cmake")
list(TRANSFORM aliquot_umbrella_headers PREPEND "${aliquot_public_folder}/aliquot/" OUTPUT_VARIABLE _copies)
# Users do not see the folders inside checkpoint/ and optim/: aliquot/checkpoint/io_lane.h, aliquot/optim/update.h.
list(TRANSFORM aliquot_public_headers REPLACE "^(checkpoint|optim)/.+/" "\\1/" OUTPUT_VARIABLE _inner_copies)
list(TRANSFORM _inner_copies PREPEND "${aliquot_public_folder}/aliquot/")
# Named, so that what includes a copy is compiled again in the very run that changes it.
add_custom_command(OUTPUT "${aliquot_public_folder}/copied" BYPRODUCTS ${_copies} ${_inner_copies}
  COMMAND ${CMAKE_COMMAND} "-DHEADERS=${_copied}" "-DFROM=${PROJECT_SOURCE_DIR}" "-DTO=${aliquot_public_folder}" -P "${_script}"
  DEPENDS ${_sources} "${_script}" "${CMAKE_CURRENT_LIST_FILE}"
  COMMENT "Copying the public headers" VERBATIM)
add_custom_target(aliquot_headers DEPENDS "${aliquot_public_folder}/copied")
