! The functions and types of <aliquot/c.h>, whose comments describe them. The function aliquot_NAME has the name
! aliquot_c_NAME here, so that the names of module aliquot stay free. Most programs need only module aliquot.
! Arguments that a function may leave unchanged, wholly or in part, have the attribute intent(inout).
module aliquot_c
  use, intrinsic :: iso_c_binding
  implicit none

  integer(c_int), parameter :: aliquot_done = 0, aliquot_usage = 1, aliquot_unavailable = 2, aliquot_fault = 3, &
      aliquot_not_finite = 4, aliquot_bad_checkpoint = 5
  integer(c_int), parameter :: aliquot_c_not_split = 0, aliquot_c_split_rows = 1, aliquot_c_split_columns = 2
  integer(c_int), parameter :: aliquot_c_kind_sum = 0, aliquot_c_kind_gather = 1, aliquot_c_kind_scatter_sum = 2
  integer(c_int), parameter :: aliquot_c_buffer_output = 0, aliquot_c_buffer_kept = 1, aliquot_c_buffer_scratch = 2, &
      aliquot_c_buffer_gradient = 3
  integer(c_int), parameter :: aliquot_c_float32 = 0, aliquot_c_bfloat16 = 1, aliquot_c_float16 = 2
  integer(c_int), parameter :: aliquot_c_use_forward = 0, aliquot_c_use_backward = 1, aliquot_c_use_evaluate = 2, &
      aliquot_c_use_backward_input = 3, aliquot_c_use_backward_weights = 4
  integer(c_int), parameter :: aliquot_c_no_work = -1

  type, bind(C) :: aliquot_c_parameter
    type(c_ptr) :: name = c_null_ptr
    integer(c_int) :: dimensions = 0
    type(c_ptr) :: shape = c_null_ptr, value = c_null_ptr, gradient = c_null_ptr
    integer(c_int) :: frozen = 0, not_decayed = 0
    real(c_float) :: lr_scale = 0
    integer(c_int) :: value_bytes = 0, gradient_bytes = 0
    real(c_float) :: decay_scale = 0
    integer(c_int) :: no_matrix = 0, split = 0, part_count = 0
    type(c_ptr) :: part_lengths = c_null_ptr, part_units = c_null_ptr
    integer(c_int) :: partial_gradient = 0
  end type
  type, bind(C) :: aliquot_c_collective
    type(c_ptr) :: name = c_null_ptr
    integer(c_int) :: kind = 0, part = 0, buffer = 0
    integer(c_int64_t) :: offset = 0, rows = 0, row_elements = 0
    integer(c_int) :: type = 0, not_in_recompute = 0
  end type
  type, bind(C) :: aliquot_c_activations
    integer(c_int64_t) :: output = 0, kept = 0, scratch = 0
    integer(c_int) :: recomputable = 0, input_not_read = 0, output_not_read = 0, splits_backward = 0
    integer(c_int64_t) :: weight_inputs = 0
    integer(c_int) :: collective_count = 0
    type(c_ptr) :: collectives = c_null_ptr
  end type
  type, bind(C) :: aliquot_c_use_memory
    integer(c_int) :: use = 0
    type(c_ptr) :: input = c_null_ptr, output = c_null_ptr, kept = c_null_ptr, scratch = c_null_ptr
    type(c_ptr) :: backward = c_null_ptr
    integer(c_int) :: recomputed = 0
    type(c_ptr) :: weight_inputs = c_null_ptr
  end type
  type, bind(C) :: aliquot_c_memory
    integer(c_int64_t) :: parameters = 0, gradients = 0, optimizer = 0, slots = 0, communication = 0, staging = 0
    integer(c_int64_t) :: activations = 0, peak = 0
  end type
  type, bind(C) :: aliquot_c_work
    integer(c_int) :: kind = 0, use = 0, micro_batch = 0, unit_count = 0
    type(c_ptr) :: units = c_null_ptr
    type(aliquot_c_use_memory) :: memory
    integer(c_int) :: data_coordinate = 0, replayed = 0
  end type
  type, bind(C) :: aliquot_c_step_report
    integer(c_int64_t) :: step = 0
    real(c_double) :: gradient_norm = 0, learning_rate = 0, loss_scale = 0
    integer(c_int) :: skipped = 0, abandoned_by = -1
    type(c_ptr) :: first_not_finite = c_null_ptr
  end type

  interface
    type(c_ptr) function aliquot_c_message() bind(C, name='aliquot_message')
      import
    end function
    type(c_ptr) function aliquot_c_version() bind(C, name='aliquot_version')
      import
    end function
    integer(c_int) function aliquot_c_install_fault_names() bind(C, name='aliquot_install_fault_names')
      import
    end function
    integer(c_int) function aliquot_c_log_to_standard_error() bind(C, name='aliquot_log_to_standard_error')
      import
    end function
    integer(c_int) function aliquot_c_options_create(options) bind(C, name='aliquot_options_create')
      import
      type(c_ptr), intent(out) :: options
    end function
    integer(c_int) function aliquot_c_options_set(options, name, value) bind(C, name='aliquot_options_set')
      import
      type(c_ptr), value :: options
      character(kind=c_char), intent(in) :: name(*), value(*)
    end function
    subroutine aliquot_c_options_free(options) bind(C, name='aliquot_options_free')
      import
      type(c_ptr), value :: options
    end subroutine
    integer(c_int) function aliquot_c_world_from_environment(options, world) &
        bind(C, name='aliquot_world_from_environment')
      import
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: world
    end function
    integer(c_int) function aliquot_c_world_from_mpi_f(communicator, options, world) &
        bind(C, name='aliquot_world_from_mpi_f')
      import
      integer(c_int), value :: communicator
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: world
    end function
    integer(c_int) function aliquot_c_world_threads(rank_count, body, context, options) &
        bind(C, name='aliquot_world_threads')
      import
      integer(c_int), value :: rank_count
      type(c_funptr), value :: body
      type(c_ptr), value :: context, options
    end function
    integer(c_int) function aliquot_c_world_run(rank_count, body, context, options) bind(C, name='aliquot_world_run')
      import
      integer(c_int), value :: rank_count
      type(c_funptr), value :: body
      type(c_ptr), value :: context, options
    end function
    subroutine aliquot_c_world_free(world) bind(C, name='aliquot_world_free')
      import
      type(c_ptr), value :: world
    end subroutine
    integer(c_int) function aliquot_c_rank(world) bind(C, name='aliquot_rank')
      import
      type(c_ptr), value :: world
    end function
    integer(c_int) function aliquot_c_rank_count(world) bind(C, name='aliquot_rank_count')
      import
      type(c_ptr), value :: world
    end function
    integer(c_int) function aliquot_c_sum(world, values, count) bind(C, name='aliquot_sum')
      import
      type(c_ptr), value :: world
      real(c_double), intent(inout) :: values(*)
      integer(c_int), value :: count
    end function
    integer(c_int) function aliquot_c_engine_create(world, options, engine) bind(C, name='aliquot_engine_create')
      import
      type(c_ptr), value :: world, options
      type(c_ptr), intent(out) :: engine
    end function
    subroutine aliquot_c_engine_free(engine) bind(C, name='aliquot_engine_free')
      import
      type(c_ptr), value :: engine
    end subroutine
    integer(c_int) function aliquot_c_add_unit(engine, name, unit) bind(C, name='aliquot_add_unit')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), intent(inout), optional :: unit
    end function
    integer(c_int) function aliquot_c_assigns_gradients(engine, unit) bind(C, name='aliquot_assigns_gradients')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
    end function
    integer(c_int) function aliquot_c_add_parameter(engine, unit, parameter) bind(C, name='aliquot_add_parameter')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
      type(aliquot_c_parameter), intent(in) :: parameter
    end function
    integer(c_int) function aliquot_c_add_slice(engine, unit, parameter, index, count) &
        bind(C, name='aliquot_add_slice')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
      type(aliquot_c_parameter), intent(in) :: parameter
      integer(c_int64_t), value :: index, count
    end function
    integer(c_int) function aliquot_c_rank_range(count, tensor_rank, tensor, first, end) &
        bind(C, name='aliquot_rank_range')
      import
      integer(c_int64_t), value :: count
      integer(c_int), value :: tensor_rank, tensor
      integer(c_int64_t), intent(out) :: first, end
    end function
    integer(c_int) function aliquot_c_declare_order(engine, use_count, unit_counts, units) &
        bind(C, name='aliquot_declare_order')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: use_count
      integer(c_int), intent(in) :: unit_counts(*), units(*)
    end function
    integer(c_int) function aliquot_c_declare_activations(engine, use_count, uses, backward_bytes, recompute, context) &
        bind(C, name='aliquot_declare_activations')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: use_count
      type(aliquot_c_activations), intent(in) :: uses(*)
      integer(c_int64_t), value :: backward_bytes
      type(c_funptr), value :: recompute
      type(c_ptr), value :: context
    end function
    integer(c_int) function aliquot_c_planned_memory(engine, memory) bind(C, name='aliquot_planned_memory')
      import
      type(c_ptr), value :: engine
      type(aliquot_c_memory), intent(out) :: memory
    end function
    integer(c_int) function aliquot_c_measured_memory(engine, memory) bind(C, name='aliquot_measured_memory')
      import
      type(c_ptr), value :: engine
      type(aliquot_c_memory), intent(out) :: memory
    end function
    integer(c_int) function aliquot_c_materialize(engine, initialize, context) bind(C, name='aliquot_materialize')
      import
      type(c_ptr), value :: engine
      type(c_funptr), value :: initialize
      type(c_ptr), value :: context
    end function
    integer(c_int) function aliquot_c_compute_on(engine, stream) bind(C, name='aliquot_compute_on')
      import
      type(c_ptr), value :: engine, stream
    end function
    integer(c_int) function aliquot_c_micro_batch(engine) bind(C, name='aliquot_micro_batch')
      import
      type(c_ptr), value :: engine
    end function
    integer(c_int) function aliquot_c_forward(engine, unit) bind(C, name='aliquot_forward')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
    end function
    integer(c_int) function aliquot_c_backward(engine, unit) bind(C, name='aliquot_backward')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
    end function
    integer(c_int) function aliquot_c_evaluate(engine, unit) bind(C, name='aliquot_evaluate')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
    end function
    integer(c_int) function aliquot_c_close(engine) bind(C, name='aliquot_close')
      import
      type(c_ptr), value :: engine
    end function
    integer(c_int) function aliquot_c_memory_of_use(engine, memory) bind(C, name='aliquot_memory_of_use')
      import
      type(c_ptr), value :: engine
      type(aliquot_c_use_memory), intent(out) :: memory
    end function
    integer(c_int) function aliquot_c_run_collective(engine, name) bind(C, name='aliquot_run_collective')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
    end function
    integer(c_int) function aliquot_c_open(engine, use, unit_count, units) bind(C, name='aliquot_open')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: use, unit_count
      integer(c_int), intent(in) :: units(*)
    end function
    integer(c_int) function aliquot_c_run_passes(engine, passes, context) bind(C, name='aliquot_run_passes')
      import
      type(c_ptr), value :: engine
      type(c_funptr), value :: passes
      type(c_ptr), value :: context
    end function
    integer(c_int) function aliquot_c_next(engine, work) bind(C, name='aliquot_next')
      import
      type(c_ptr), value :: engine
      type(aliquot_c_work), intent(out) :: work
    end function
    integer(c_int) function aliquot_c_next_evaluation(engine, work) bind(C, name='aliquot_next_evaluation')
      import
      type(c_ptr), value :: engine
      type(aliquot_c_work), intent(out) :: work
    end function
    integer(c_int) function aliquot_c_compare_loss(engine, loss, replayed) bind(C, name='aliquot_compare_loss')
      import
      type(c_ptr), value :: engine
      real(c_double), value :: loss
      integer(c_int), value :: replayed
    end function
    integer(c_int) function aliquot_c_sum_losses(engine, count, values) bind(C, name='aliquot_sum_losses')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: count
      real(c_double), intent(inout) :: values(*)
    end function
    integer(c_int) function aliquot_c_skip(engine, unit_count, units) bind(C, name='aliquot_skip')
      import
      type(c_ptr), value :: engine
      integer(c_int), value :: unit_count
      integer(c_int), intent(in) :: units(*)
    end function
    integer(c_int) function aliquot_c_abandon(engine) bind(C, name='aliquot_abandon')
      import
      type(c_ptr), value :: engine
    end function
    integer(c_int) function aliquot_c_step(engine, report) bind(C, name='aliquot_step')
      import
      type(c_ptr), value :: engine
      type(aliquot_c_step_report), intent(out), optional :: report
    end function
    integer(c_int) function aliquot_c_set_learning_rate(engine, rate) bind(C, name='aliquot_set_learning_rate')
      import
      type(c_ptr), value :: engine
      real(c_double), value :: rate
    end function
    integer(c_int) function aliquot_c_loss_scale(engine, scale) bind(C, name='aliquot_loss_scale')
      import
      type(c_ptr), value :: engine
      real(c_double), intent(out) :: scale
    end function
    integer(c_int) function aliquot_c_step_count(engine, steps) bind(C, name='aliquot_step_count')
      import
      type(c_ptr), value :: engine
      integer(c_int64_t), intent(out) :: steps
    end function
    integer(c_int) function aliquot_c_set_trainable(engine, prefix, trainable) bind(C, name='aliquot_set_trainable')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: prefix(*)
      integer(c_int), value :: trainable
    end function
    integer(c_int) function aliquot_c_set_scalar_integers(engine, name, count, values) &
        bind(C, name='aliquot_set_scalar_integers')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int64_t), intent(in) :: values(*)
    end function
    integer(c_int) function aliquot_c_set_scalar_reals(engine, name, count, values) &
        bind(C, name='aliquot_set_scalar_reals')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      real(c_double), intent(in) :: values(*)
    end function
    integer(c_int) function aliquot_c_set_scalar_text(engine, name, text) bind(C, name='aliquot_set_scalar_text')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*), text(*)
    end function
    integer(c_int) function aliquot_c_scalar_integers(engine, name, capacity, values, count) &
        bind(C, name='aliquot_scalar_integers')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: capacity
      integer(c_int64_t), intent(inout) :: values(*)
      integer(c_int64_t), intent(out), optional :: count
    end function
    integer(c_int) function aliquot_c_scalar_reals(engine, name, capacity, values, count) &
        bind(C, name='aliquot_scalar_reals')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: capacity
      real(c_double), intent(inout) :: values(*)
      integer(c_int64_t), intent(out), optional :: count
    end function
    integer(c_int) function aliquot_c_scalar_text(engine, name, text) bind(C, name='aliquot_scalar_text')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), intent(out) :: text
    end function
    integer(c_int) function aliquot_c_has_scalar(engine, name, present) bind(C, name='aliquot_has_scalar')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), intent(out) :: present
    end function
    integer(c_int) function aliquot_c_read(engine, parameter, count, values) bind(C, name='aliquot_read')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: parameter(*)
      integer(c_int64_t), value :: count
      real(c_float), intent(inout) :: values(*)
    end function
    integer(c_int) function aliquot_c_check_copies(engine) bind(C, name='aliquot_check_copies')
      import
      type(c_ptr), value :: engine
    end function
    integer(c_int) function aliquot_c_save(engine, directory, keep) bind(C, name='aliquot_save')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: directory(*)
      integer(c_int), value :: keep
    end function
    integer(c_int) function aliquot_c_load(engine, path) bind(C, name='aliquot_load')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: path(*)
    end function
    integer(c_int) function aliquot_c_load_newest(engine, directory, found) bind(C, name='aliquot_load_newest')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: directory(*)
      integer(c_int), intent(inout), optional :: found
    end function
    integer(c_int) function aliquot_c_load_weights(engine, path) bind(C, name='aliquot_load_weights')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: path(*)
    end function
  end interface
end module
