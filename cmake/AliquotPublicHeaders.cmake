# The headers that are installed: what a user includes, include/aliquot/, and what these include, no more. Each of the latter is
# exported whole, by the visibility pragma around its namespace, so that declaring something there is all it takes.
# tests/package/ holds the list to that.
set(aliquot_umbrella_headers aliquot.h c.h checkpoint.h rule.h torch.h)
set(aliquot_public_headers
  kernels/booking.h kernels/device.h kernels/dtype.h kernels/error.h kernels/float16.h kernels/host_device.h
  kernels/host_loops.h kernels/kernels.h kernels/ledger.h kernels/log.h kernels/philox.h kernels/split_master.h kernels/stream.h
  kernels/task.h
  sharding/communicator.h sharding/layout.h sharding/reduce_staging.h sharding/state.h sharding/symmetric_buffer.h sharding/topology.h
  sharding/world.h
  optim/code_blocks.h optim/custom_loops.h optim/custom_rule.h optim/dynamic_code.h optim/loss_scaler.h
  optim/optimizer.h optim/rule.h optim/stochastic.h optim/stream_block.h optim/update.h optim/update_host.h
  optim/update_loop.h optim/update_quantised.h optim/update_streams.h optim/update_tables.h
  checkpoint/background_saver.h checkpoint/checkpoint_error.h checkpoint/io_lane.h checkpoint/load.h
  checkpoint/load_weights.h checkpoint/save.h checkpoint/snapshot.h
  engine/activations.h
  engine/engine.h engine/guard_range.h engine/matrix_groups.h engine/model_spec.h engine/options.h engine/plan_line.h engine/pointer_slot.h engine/policy.h
  engine/schedule.h engine/scope.h engine/simulate.h engine/timeline.h
  libtorch/call.h libtorch/module_registry.h libtorch/module_units.h libtorch/parameter_home.h libtorch/sharded_module.h)

# Users find them all under <aliquot/...>: copies in which the spelling of the tree, "engine/engine.h", became <aliquot/engine/engine.h>.
# Built and installed users read the same copies, so neither sees a folder whose names could be taken for their own.
set(aliquot_public_folder "${PROJECT_BINARY_DIR}/public")
list(TRANSFORM aliquot_umbrella_headers PREPEND include/aliquot/ OUTPUT_VARIABLE _umbrellas)
set(_copied ${_umbrellas} ${aliquot_public_headers})
list(TRANSFORM _copied PREPEND "${PROJECT_SOURCE_DIR}/" OUTPUT_VARIABLE _sources)
set(_script "${CMAKE_CURRENT_LIST_DIR}/copy_public_headers.cmake")
list(TRANSFORM aliquot_umbrella_headers PREPEND "${aliquot_public_folder}/aliquot/" OUTPUT_VARIABLE _copies)
list(TRANSFORM aliquot_public_headers PREPEND "${aliquot_public_folder}/aliquot/" OUTPUT_VARIABLE _inner_copies)
# Named, so that what includes a copy is compiled again in the very run that changes it.
add_custom_command(OUTPUT "${aliquot_public_folder}/copied" BYPRODUCTS ${_copies} ${_inner_copies}
  COMMAND ${CMAKE_COMMAND} "-DHEADERS=${_copied}" "-DFROM=${PROJECT_SOURCE_DIR}" "-DTO=${aliquot_public_folder}" -P "${_script}"
  DEPENDS ${_sources} "${_script}" "${CMAKE_CURRENT_LIST_FILE}"
  COMMENT "Copying the public headers" VERBATIM)
add_custom_target(aliquot_headers DEPENDS "${aliquot_public_folder}/copied")
