! mlp.cpp in Fortran. It computes the same bits: mlp_f [RANKS [ZERO_STAGE [STEPS [FOLDER]]]], or under mpirun. With
! FOLDER it resumes from the newest checkpoint there, if any, and saves one at the end.

module network
  use, intrinsic :: iso_fortran_env, only: int64, real32, real64
  use aliquot
  implicit none
  integer, parameter :: layers = 4, width = 32, batch = 16

  type :: model
    type(aliquot_parameter) :: weights(layers), biases(layers)
    real(real32) :: values(width, batch, 0:layers) = 0, slopes(width, batch) = 0
  end type

contains

  ! Fortran stores columns contiguously, so column o of `weight` is row o in C.
  recursive subroutine forward(m, l)
    type(model), intent(inout) :: m
    integer, intent(in) :: l
    real(real32), pointer :: weight(:, :), bias(:)
    real(real32) :: total
    integer :: b, o, i
    call m%weights(l)%values(weight)
    call m%biases(l)%values(bias)
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

  recursive subroutine backward(m, l)
    type(model), intent(inout) :: m
    integer, intent(in) :: l
    real(real32), pointer :: weight(:, :), weight_gradient(:, :), bias_gradient(:)
    real(real32) :: before(width, batch), slope
    integer :: b, o, i
    call m%weights(l)%values(weight)
    call m%weights(l)%gradient(weight_gradient)
    call m%biases(l)%gradient(bias_gradient)
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
    integer(int64) :: hash
    integer :: b
    do b = 1, batch
      hash = iand(int(number * batch + b, int64) * 2654435761_int64, int(z'FFFFFFFF', int64))
      m%values(1, b, 0) = real(ishft(hash, -8), real32) / 8388608.0 - 1.0
    end do
  end subroutine

  real(real64) function loss(m)
    type(model), intent(inout) :: m
    real(real32) :: x, miss
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
  type(aliquot_options) :: options
  character(len=256) :: folder = ''

contains

  subroutine initial(name, first, values)
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: first
    real(real32), intent(out) :: values(:)
    integer(int64) :: i
    do i = 1, size(values, kind=int64)
      values(i) = real(mod((first + i - 2) * 7919, 1001_int64) - 500, real32) / 2500.0
    end do
    if (len(name) == 0) stop 'a parameter has no name'
  end subroutine

  ! Runs on each rank. An error stops the program, because no call has the argument stat.
  recursive subroutine train(world, stat)
    type(aliquot_world), intent(inout) :: world
    integer, intent(inout) :: stat
    type(aliquot_engine) :: engine
    type(model), allocatable :: m
    integer :: step, first
    allocate (m)
    call engine%create(world, options)
    call declare(engine, m)
    if (folder /= '') call engine%load_newest(folder)
    first = int(engine%step_count()) + 1
    do step = first, steps
      call take_step(world, engine, m, step)
    end do
    if (folder /= '') call engine%save(folder, keep=1)
    stat = aliquot_done
  end subroutine

  subroutine declare(engine, m)
    type(aliquot_engine), intent(inout) :: engine
    type(model), intent(inout) :: m
    integer :: unit, l
    do l = 1, layers
      call engine%add_unit('layer.' // achar(iachar('0') + l - 1), unit)
      call engine%add_parameter(unit, 'weight', [width, width], m%weights(l))
      call engine%add_parameter(unit, 'bias', [width], m%biases(l), decayed=.false.)
    end do
    call engine%materialize(initial)
  end subroutine

  recursive subroutine take_step(world, engine, m, step)
    type(aliquot_world), intent(inout) :: world
    type(aliquot_engine), intent(inout) :: engine
    type(model), intent(inout) :: m
    integer, intent(in) :: step
    real(real64) :: mean
    integer :: l
    call engine%micro_batch()
    call load(m, (step - 1) * world%rank_count() + world%rank())
    do l = 1, layers
      call engine%forward(l)
      call forward(m, l)
      call engine%close()
    end do
    mean = loss(m) / world%rank_count()
    do l = layers, 1, -1
      call engine%backward(l)
      call backward(m, l)
      call engine%close()
    end do
    call engine%step()
    call world%sum(mean)
    if (world%rank() == 0 .and. mod(step, 20) == 0) print '(a,i0,a,es24.17)', 'step ', step, ' loss ', mean
  end subroutine
end module

program mlp
  use training
  implicit none
  if (command_argument_count() >= 4) call get_command_argument(4, folder)
  steps = argument(3, 100)
  call options%set('zero-stage', argument(2, 3))
  call options%set('max-skipped', 1)
  call options%set('lr', 0.01)
  call aliquot_run(argument(1, 2), train, options)

contains

  integer function argument(index, default)
    integer, intent(in) :: index, default
    character(len=16) :: word
    argument = default
    if (command_argument_count() < index) return
    call get_command_argument(index, word)
    read (word, *) argument
  end function
end program
