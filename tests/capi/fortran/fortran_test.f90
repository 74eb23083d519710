! Tests module aliquot: errors, objects, scalars, and whether the types of module aliquot_c match those of <aliquot/c.h>.
!   fortran_test FOLDER          runs all tests; checkpoints are written to FOLDER
!   fortran_test stop | copy | copy_array     makes a mistake that stops the program
module checks
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int64, real32, real64
  use aliquot
  use aliquot_c
  implicit none
  integer :: failures = 0, freed_options = 0
  logical :: empty_lists = .false.
  character(len=256) :: folder = ''

  interface
    subroutine c_layout(numbers, count) bind(C, name='aliquot_test_layout')
      import
      integer(c_int64_t), intent(out) :: numbers(*)
      integer(c_int), value :: count
    end subroutine
    subroutine free_options_of_library(options) bind(C, name='__real_aliquot_options_free')
      import
      type(c_ptr), value :: options
    end subroutine
    integer(c_int) function scalar_integers_of_library(engine, name, capacity, values, count) &
        bind(C, name='__real_aliquot_scalar_integers')
      import
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: capacity
      integer(c_int64_t), intent(inout) :: values(*)
      integer(c_int64_t), intent(out), optional :: count
    end function
  end interface

contains

  ! Called in place of aliquot_options_free(), by the linker's option --wrap.
  subroutine count_freed_options(options) bind(C, name='__wrap_aliquot_options_free')
    type(c_ptr), value :: options
    freed_options = freed_options + 1
    call free_options_of_library(options)
  end subroutine

  ! Called in place of aliquot_scalar_integers(). A C++ program can save an empty list, but this module cannot set one.
  integer(c_int) function get_scalar_integers(engine, name, capacity, values, count) &
      bind(C, name='__wrap_aliquot_scalar_integers') result(status)
    type(c_ptr), value :: engine
    character(kind=c_char), intent(in) :: name(*)
    integer(c_int64_t), value :: capacity
    integer(c_int64_t), intent(inout) :: values(*)
    integer(c_int64_t), intent(out), optional :: count
    if (.not. empty_lists) then
      status = scalar_integers_of_library(engine, name, capacity, values, count)
      return
    end if
    if (present(count)) count = 0
    status = aliquot_done
  end function

  subroutine use_arrays_of_objects()
    type(aliquot_options) :: two(2)
    type(aliquot_options), allocatable :: table(:, :)
    integer :: i
    allocate (table(2, 3))
    do i = 1, 2
      call two(i)%set('zero-stage', i)
      call table(i, 3)%set('zero-stage', i)
    end do
  end subroutine

  subroutine expect(holds, what)
    logical, intent(in) :: holds
    character(len=*), intent(in) :: what
    if (holds) return
    print '(2a)', 'failed: ', what
    failures = failures + 1
  end subroutine

  ! Expects an error with this status, and a message that contains `part`.
  subroutine expect_error(stat, errmsg, status, part)
    integer, intent(in) :: stat, status
    character(len=*), intent(in) :: errmsg, part
    call expect(stat == status .and. index(errmsg, part) > 0, part // ' in: ' // trim(errmsg))
  end subroutine

  subroutine check_layout()
    integer(c_int64_t) :: expected(14), found(14)
    type(aliquot_c_parameter), target :: parameter
    type(aliquot_c_collective), target :: collective
    type(aliquot_c_activations), target :: activations
    type(aliquot_c_use_memory), target :: use_memory
    type(aliquot_c_memory), target :: memory
    type(aliquot_c_work), target :: work
    type(aliquot_c_step_report), target :: report
    integer :: i
    call c_layout(expected, size(expected, kind=c_int))
    found(1:2) = [c_sizeof(parameter), distance(c_loc(parameter), c_loc(parameter%partial_gradient))]
    found(3:4) = [c_sizeof(collective), distance(c_loc(collective), c_loc(collective%not_in_recompute))]
    found(5:6) = [c_sizeof(activations), distance(c_loc(activations), c_loc(activations%collectives))]
    found(7:8) = [c_sizeof(use_memory), distance(c_loc(use_memory), c_loc(use_memory%weight_inputs))]
    found(9:10) = [c_sizeof(memory), distance(c_loc(memory), c_loc(memory%peak))]
    found(11:12) = [c_sizeof(work), distance(c_loc(work), c_loc(work%replayed))]
    found(13:14) = [c_sizeof(report), distance(c_loc(report), c_loc(report%first_not_finite))]
    do i = 1, size(found)
      if (found(i) /= expected(i)) print '(3(a,i0))', 'number ', i, ' is ', found(i), ', in C it is ', expected(i)
    end do
    call expect(all(found == expected), 'the types of aliquot_c have the layout of c.h')
  end subroutine

  integer(c_int64_t) function distance(from, to)
    type(c_ptr), intent(in) :: from, to
    distance = transfer(to, distance) - transfer(from, distance)
  end function

  subroutine check_options()
    type(aliquot_options) :: options
    character(len=400) :: errmsg
    integer :: stat
    call options%set('zero-stge', 3, stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, 'unknown option "zero-stge": valid options are device,')
    call options%set('zero-stage', 4, stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, "the option zero-stage: invalid value '4': expected one of 0, 1, 2, 3")
    call options%set('lr', -0.5, stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, "the option lr: invalid value '-5.00000000E-01'")
    call options%set('lr', 1.0e-3_real64, stat, errmsg)
    call expect(stat == aliquot_done, 'a real64 value is accepted')
    call options%set('lr', 1.0e-3, stat, errmsg)
    call expect(stat == aliquot_done, 'a real32 value is accepted')
    call options%set('seed', huge(0_int64), stat, errmsg)
    call expect(stat == aliquot_done, 'an int64 value is accepted')
    call options%set('check', .true., stat, errmsg)
    call expect(stat == aliquot_done, 'a logical value is accepted')
    call options%set('memory-budget', '1GiB', stat, errmsg)
    call expect(stat == aliquot_done, 'a text is accepted')
    call options%free()
    call options%free()
  end subroutine

  subroutine fill(name, first, values)
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: first
    real(real32), intent(out) :: values(:)
    integer(int64) :: i
    do i = 1, size(values, kind=int64)
      values(i) = real(first + i - 1, real32)
    end do
    call expect(name == 'unit.matrix' .or. name == 'unit.vector', 'the names of the parameters')
  end subroutine

  recursive subroutine check_engine(world, stat)
    type(aliquot_world), intent(inout) :: world
    integer, intent(inout) :: stat
    type(aliquot_engine) :: engine
    type(aliquot_parameter) :: matrix, vector, copy
    type(aliquot_report) :: report
    type(aliquot_memory) :: planned
    real(real32), pointer :: p(:, :), v(:), g(:, :)
    real(real32) :: whole(3, 5), strided(6, 5)
    character(len=200) :: errmsg
    integer :: unit, status
    call engine%create(world)
    call engine%add_unit('unit', unit)
    call expect(unit == 1, 'units are counted from 1')
    call engine%add_parameter(unit, 'matrix', [3, 5], matrix, lr_scale=0.5)
    call engine%add_parameter(unit, 'vector', [4], vector, trainable=.false.)
    call engine%add_parameter(7, 'none', [4], copy, stat=status, errmsg=errmsg)
    call expect_error(status, errmsg, aliquot_usage, 'invalid unit number 6')
    call engine%planned_memory(planned)
    call expect(planned%peak > 0, 'the planned memory')
    call engine%materialize(fill)
    call expect(engine%step_count() == 0 .and. engine%loss_scale() == 1, 'the functions of the engine')
    call engine%micro_batch()
    call engine%forward(1)
    call matrix%values(p)
    call vector%values(v)
    call expect(all(shape(p) == [3, 5]) .and. p(2, 1) == 2 .and. p(1, 2) == 4 .and. p(3, 5) == 15, 'the matrix')
    call expect(all(v == [1, 2, 3, 4]), 'the vector')
    call engine%close()
    call engine%backward([1])
    copy = matrix
    call copy%gradient(g)
    call expect(all(shape(g) == [3, 5]), 'the shape of the gradient')
    g = 1
    call engine%close()
    call engine%step(report)
    call expect(report%step == 1 .and. .not. report%skipped .and. report%abandoned_by == -1, 'the report')
    call expect(report%first_not_finite == '' .and. abs(report%gradient_norm - sqrt(15.0)) < 1e-5, 'the norm')
    call engine%read('unit.matrix', whole)
    call engine%read('unit.matrix', strided(1:5:2, :))
    call expect(all(whole == strided(1:5:2, :)) .and. abs(whole(1, 1) - 1) < 1e-3, 'read()')
    call engine%read('unit.vektor', whole, status, errmsg)
    call expect_error(status, errmsg, aliquot_usage, 'vektor')
    call engine%close(stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, 'no unit was open')
    call world%free()  ! the engine keeps the handle
    stat = aliquot_done
  end subroutine

  recursive subroutine save_scalars(world, stat)
    type(aliquot_world), intent(inout) :: world
    integer, intent(inout) :: stat
    type(aliquot_engine) :: engine
    character(len=200) :: errmsg
    call make_engine(engine, world)
    call engine%set_scalar('time', 0.1_real64)
    call engine%set_scalar('sample', 7)
    call engine%set_scalar('samples', [1_int64, -2_int64])
    call engine%set_scalar('times', [0.5_real64, 1e300_real64])
    call engine%set_scalar('name', 'ring of cells  ')
    call engine%set_scalar('long', -3000000000_int64)
    call engine%set_scalar('step', 1, stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, 'invalid scalar "step": its name is reserved')
    call engine%save(folder, keep=1)
    stat = aliquot_done
  end subroutine

  recursive subroutine get_empty_list(world, stat)
    type(aliquot_world), intent(inout) :: world
    integer, intent(inout) :: stat
    type(aliquot_engine) :: engine
    character(len=200) :: errmsg
    integer :: value
    call make_engine(engine, world)
    call engine%get_scalar('list', value, stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, 'the scalar list is an empty list: expected one value')
    stat = aliquot_done
  end subroutine

  recursive subroutine load_scalars(world, stat)
    type(aliquot_world), intent(inout) :: world
    integer, intent(inout) :: stat
    type(aliquot_engine) :: engine, unready
    character(len=200) :: errmsg
    character(len=:), allocatable :: text
    real(real64) :: time, times(3)
    integer(int64) :: samples(2), long_sample
    integer :: sample
    logical :: found
    call make_engine(engine, world)
    call engine%load_newest(trim(folder) // '/absent', found)
    call expect(.not. found, 'load_newest() finds nothing')
    call unready%create(world)
    found = .true.
    call unready%load_newest(folder, found, stat, errmsg)
    call expect(stat == aliquot_usage .and. found, 'load_newest() fails and keeps the argument: ' // trim(errmsg))
    found = .false.
    call engine%load_newest(folder, found)
    call expect(found, 'load_newest() finds the checkpoint')
    times = 9
    call engine%get_scalar('time', time)
    call engine%get_scalar('sample', sample)
    call engine%get_scalar('sample', long_sample)
    call engine%get_scalar('samples', samples)
    call engine%get_scalar('times', times)
    call engine%get_scalar('name', text)
    call expect(time == 0.1_real64 .and. sample == 7 .and. long_sample == 7, 'scalars of one value')
    call expect(all(samples == [1, -2]) .and. all(times == [0.5_real64, 1e300_real64, 9.0_real64]), 'lists')
    call expect(text == 'ring of cells', 'the text')
    call expect(engine%has_scalar('time') .and. .not. engine%has_scalar('tide'), 'has_scalar()')
    call engine%get_scalar('tide', time, stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, 'no scalar is named "tide"')
    call engine%get_scalar('samples', sample, stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, 'the scalar samples has 2 values: expected at most 1')
    call engine%get_scalar('long', long_sample)
    call engine%get_scalar('long', sample, stat, errmsg)
    call expect_error(stat, errmsg, aliquot_usage, 'the scalar long is -3000000000: expected an integer of 32 bits')
    call expect(sample == 7 .and. long_sample == -3000000000_int64, 'a value that does not fit changes nothing')
    call engine%get_scalar('sample', sample, stat)
    call expect(stat == aliquot_done, 'the status of get_scalar()')
    stat = aliquot_done
  end subroutine

  subroutine make_engine(engine, world)
    type(aliquot_engine), intent(inout) :: engine
    type(aliquot_world), intent(in) :: world
    type(aliquot_parameter) :: parameter
    integer :: unit
    call engine%create(world)
    call engine%add_unit('unit', unit)
    call engine%add_parameter(unit, 'vector', [4], parameter)
    call engine%materialize(fill)
  end subroutine

  recursive subroutine fail(world, stat)
    type(aliquot_world), intent(inout) :: world
    integer, intent(inout) :: stat
    type(aliquot_engine) :: engine
    call make_engine(engine, world)
    call engine%forward(1, stat)
  end subroutine
end module

program fortran_test
  use checks
  implicit none
  character(len=256) :: word
  type(aliquot_options) :: options, other, array(2), other_array(2)
  character(len=200) :: errmsg
  integer :: stat, ranks
  call get_command_argument(1, word)
  if (word == 'stop') call options%set('zero-stage', 9)
  if (word == 'copy') then
    call options%set('zero-stage', 1)
    other = options
  end if
  if (word == 'copy_array') then
    call array(2)%set('zero-stage', 1)
    other_array = array
  end if
  folder = word
  call check_layout()
  call check_options()
  freed_options = 0
  call use_arrays_of_objects()
  call expect(freed_options == 4, 'arrays of objects are freed')
  do ranks = 1, 3
    call aliquot_run_threads(ranks, check_engine)
  end do
  call aliquot_run(2, save_scalars)
  call aliquot_run(3, load_scalars)
  empty_lists = .true.
  call aliquot_run_threads(1, get_empty_list)
  call aliquot_run_threads(2, fail, stat=stat, errmsg=errmsg)
  call expect_error(stat, errmsg, aliquot_usage, 'a unit was opened outside of a micro-batch')
  call expect(len(aliquot_version()) > 0 .and. len(aliquot_message()) > 0, 'texts')
  if (failures > 0) stop 1
  print '(a)', 'all tests passed'
end program
