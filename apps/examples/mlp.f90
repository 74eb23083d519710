! mlp.cpp in Fortran. It computes the same bits through the C interface: mlp_f [RANKS [ZERO_STAGE [STEPS]]], or under
! mpirun.

! The part of <aliquot/c.h> that this program uses.
module aliquot
  use, intrinsic :: iso_c_binding
  implicit none

  type, bind(C) :: aliquot_parameter
    type(c_ptr) :: name
    integer(c_int) :: dimensions
    type(c_ptr) :: shape, value, gradient  ! value, gradient: addresses of pointers that Aliquot sets
    integer(c_int) :: frozen = 0, not_decayed = 0
    real(c_float) :: lr_scale = 0
    integer(c_int) :: value_bytes = 0, gradient_bytes = 0
    real(c_float) :: decay_scale = 0
    integer(c_int) :: no_matrix = 0
    integer(c_int) :: split = 0, part_count = 0
    type(c_ptr) :: part_lengths = c_null_ptr, part_units = c_null_ptr
    integer(c_int) :: partial_gradient = 0
  end type

  interface
    type(c_ptr) function aliquot_message() bind(C)
      import :: c_ptr
    end function
    integer(c_int) function aliquot_options_create(options) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: options
    end function
    integer(c_int) function aliquot_options_set(options, name, text) bind(C)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: options
      character(kind=c_char), intent(in) :: name(*), text(*)
    end function
    integer(c_int) function aliquot_world_run(rank_count, body, context, options) bind(C)
      import :: c_int, c_ptr, c_funptr
      integer(c_int), value :: rank_count
      type(c_funptr), value :: body
      type(c_ptr), value :: context, options
    end function
    integer(c_int) function aliquot_rank(world) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: world
    end function
    integer(c_int) function aliquot_rank_count(world) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: world
    end function
    integer(c_int) function aliquot_sum(world, values, count) bind(C)
      import :: c_int, c_ptr, c_double
      type(c_ptr), value :: world
      real(c_double), intent(inout) :: values(*)
      integer(c_int), value :: count
    end function
    integer(c_int) function aliquot_engine_create(world, options, engine) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: world, options
      type(c_ptr), intent(out) :: engine
    end function
    subroutine aliquot_engine_free(engine) bind(C)
      import :: c_ptr
      type(c_ptr), value :: engine
    end subroutine
    integer(c_int) function aliquot_add_unit(engine, name, unit) bind(C)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: engine
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), intent(out) :: unit
    end function
    integer(c_int) function aliquot_add_parameter(engine, unit, parameter) bind(C)
      import :: c_int, c_ptr, aliquot_parameter
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
      type(aliquot_parameter), intent(in) :: parameter
    end function
    integer(c_int) function aliquot_materialize(engine, initialize, context) bind(C)
      import :: c_int, c_ptr, c_funptr
      type(c_ptr), value :: engine, context
      type(c_funptr), value :: initialize
    end function
    integer(c_int) function aliquot_micro_batch(engine) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine
    end function
    integer(c_int) function aliquot_forward(engine, unit) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
    end function
    integer(c_int) function aliquot_backward(engine, unit) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine
      integer(c_int), value :: unit
    end function
    integer(c_int) function aliquot_close(engine) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine
    end function
    integer(c_int) function aliquot_step(engine, report) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: engine, report
    end function
  end interface
end module

module network
  use aliquot
  implicit none
  integer, parameter :: layers = 4, width = 32, batch = 16

  type :: layer
    type(c_ptr) :: weight, weight_gradient, bias, bias_gradient
  end type
  type :: model
    type(layer) :: of(layers)
    real(c_float) :: values(width, batch, 0:layers), slopes(width, batch)
  end type

contains

  ! Fortran stores columns contiguously, so column o of `weight` is row o in C.
  subroutine forward(m, l)
    type(model), intent(inout) :: m
    integer, intent(in) :: l
    real(c_float), pointer :: weight(:, :), bias(:)
    real(c_float) :: total
    integer :: b, o, i
    call c_f_pointer(m%of(l)%weight, weight, [width, width])
    call c_f_pointer(m%of(l)%bias, bias, [width])
    do b = 1, batch
      do o = 1, width
        total = bias(o)
        do i = 1, width
          total = total + weight(i, o) * m%values(i, b, l - 1)
        end do
        if (l < layers .and. total < 0) total = 0.1 * total
        m%values(o, b, l) = total
      end do
    end do
  end subroutine

  subroutine backward(m, l)
    type(model), intent(inout) :: m
    integer, intent(in) :: l
    real(c_float), pointer :: weight(:, :), weight_gradient(:, :), bias_gradient(:)
    real(c_float) :: before(width, batch), slope
    integer :: b, o, i
    call c_f_pointer(m%of(l)%weight, weight, [width, width])
    call c_f_pointer(m%of(l)%weight_gradient, weight_gradient, [width, width])
    call c_f_pointer(m%of(l)%bias_gradient, bias_gradient, [width])
    before = 0
    do b = 1, batch
      do o = 1, width
        slope = m%slopes(o, b)
        if (l < layers .and. m%values(o, b, l) < 0) slope = slope * 0.1
        bias_gradient(o) = bias_gradient(o) + slope
        do i = 1, width
          weight_gradient(i, o) = weight_gradient(i, o) + slope * m%values(i, b, l - 1)
          before(i, b) = before(i, b) + slope * weight(i, o)
        end do
      end do
    end do
    m%slopes = before
  end subroutine

  subroutine load(m, number)
    type(model), intent(inout) :: m
    integer, intent(in) :: number
    integer(c_int64_t) :: hash
    integer :: b
    do b = 1, batch
      hash = iand(int(number * batch + b, c_int64_t) * 2654435761_c_int64_t, int(z'FFFFFFFF', c_int64_t))
      m%values(1, b, 0) = real(ishft(hash, -8), c_float) / 8388608.0 - 1.0
    end do
  end subroutine

  real(c_double) function loss(m)
    type(model), intent(inout) :: m
    real(c_float) :: x, miss
    integer :: b
    loss = 0
    m%slopes = 0
    do b = 1, batch
      x = m%values(1, b, 0)
      miss = m%values(1, b, layers) - (x * x * x - 0.5 * x)
      loss = loss + miss * miss / batch
      m%slopes(1, b) = 2 * miss / batch
    end do
  end function
end module

module training
  use network
  implicit none
  integer :: steps = 100
  type(c_ptr) :: options

contains

  integer(c_int) function initial(context, parameter, offset, count, values) bind(C)
    type(c_ptr), value :: context, parameter
    integer(c_int64_t), value :: offset, count
    real(c_float), intent(out) :: values(*)
    integer(c_int64_t) :: i
    do i = 1, count
      values(i) = real(mod((offset + i - 1) * 7919, 1001_c_int64_t) - 500, c_float) / 2500.0
    end do
    initial = 0
  end function

  integer(c_int) function declared(engine, m) result(status)
    type(c_ptr), intent(in) :: engine
    type(model), intent(inout), target :: m
    integer(c_int64_t), target :: shape(2)
    character(kind=c_char, len=8), target :: weight, bias
    integer(c_int) :: unit
    integer :: l
    shape = width
    weight = 'weight' // c_null_char
    bias = 'bias' // c_null_char
    do l = 1, layers
      status = aliquot_add_unit(engine, 'layer.' // achar(iachar('0') + l - 1) // c_null_char, unit)
      if (status == 0) status = aliquot_add_parameter(engine, unit, aliquot_parameter(c_loc(weight), 2, c_loc(shape), &
          c_loc(m%of(l)%weight), c_loc(m%of(l)%weight_gradient)))
      if (status == 0) status = aliquot_add_parameter(engine, unit, aliquot_parameter(c_loc(bias), 1, c_loc(shape), &
          c_loc(m%of(l)%bias), c_loc(m%of(l)%bias_gradient), not_decayed=1))
      if (status /= 0) return
    end do
    status = aliquot_materialize(engine, c_funloc(initial), c_null_ptr)
  end function

  ! Runs one step. If a rank returns a status other than 0, all ranks end.
  integer(c_int) function step_taken(world, engine, m, step) result(status)
    type(c_ptr), intent(in) :: world, engine
    type(model), intent(inout) :: m
    integer, intent(in) :: step
    real(c_double) :: mean(1)
    integer :: l
    status = aliquot_micro_batch(engine)
    if (status /= 0) return
    call load(m, (step - 1) * aliquot_rank_count(world) + aliquot_rank(world))
    do l = 1, layers
      status = aliquot_forward(engine, l - 1)
      if (status /= 0) return
      call forward(m, l)
      status = aliquot_close(engine)
      if (status /= 0) return
    end do
    mean = loss(m) / aliquot_rank_count(world)
    do l = layers, 1, -1
      status = aliquot_backward(engine, l - 1)
      if (status /= 0) return
      call backward(m, l)
      status = aliquot_close(engine)
      if (status /= 0) return
    end do
    status = aliquot_step(engine, c_null_ptr)
    if (status == 0) status = aliquot_sum(world, mean, 1)
    if (status == 0 .and. aliquot_rank(world) == 0 .and. mod(step, 20) == 0) print '(a,i0,a,es24.17)', 'step ', step, ' loss ', mean
  end function

  ! Runs on each rank.
  integer(c_int) function body(world, context) bind(C)
    type(c_ptr), value :: world, context
    type(model), pointer :: m
    type(c_ptr) :: engine
    integer :: step
    allocate (m)
    m%values = 0
    body = aliquot_engine_create(world, options, engine)
    if (body /= 0) return
    body = declared(engine, m)
    do step = 1, steps
      if (body == 0) body = step_taken(world, engine, m, step)
    end do
    call aliquot_engine_free(engine)  ! must precede deallocate: the engine sets pointers in the model
    deallocate (m)
  end function
end module

program mlp
  use training
  implicit none
  character(len=16) :: word
  character(kind=c_char), pointer :: said(:)
  integer(c_int) :: status
  integer :: ranks = 2, i

  if (command_argument_count() >= 1) then
    call get_command_argument(1, word)
    read (word, *) ranks
  end if
  if (command_argument_count() >= 3) then
    call get_command_argument(3, word)
    read (word, *) steps
  end if
  word = '3'
  if (command_argument_count() >= 2) call get_command_argument(2, word)
  status = aliquot_options_create(options)
  if (status == 0) status = aliquot_options_set(options, 'zero-stage' // c_null_char, trim(word) // c_null_char)
  if (status == 0) status = aliquot_options_set(options, 'max-skipped' // c_null_char, '1' // c_null_char)
  if (status == 0) status = aliquot_options_set(options, 'lr' // c_null_char, '0.01' // c_null_char)
  if (status == 0) status = aliquot_world_run(ranks, c_funloc(body), c_null_ptr, options)
  if (status /= 0) then
    call c_f_pointer(aliquot_message(), said, [1000])
    do i = 1, 1000
      if (said(i) == c_null_char) exit
    end do
    print *, 'mlp_f: ', said(1:i - 1)
    stop 1
  end if
end program
