! surrogate_mpi.cpp in Fortran. It computes the same bits: mpirun -n 4 surrogate_mpi_f [STEPS [ZERO_STAGE]].

! The simulation: Burgers' equation on a ring of cells.
module simulation
  use, intrinsic :: iso_fortran_env, only: int64, real32
  implicit none
  integer, parameter :: cells = 32, batch_rows = 16, time_steps = 10, samples_per_run = 16

  type :: simulation_state
    real(real32) :: state(cells)
    integer(int64) :: seed
    integer :: samples = 0
  end type

contains

  subroutine advance(state, advection, diffusion)
    real(real32), intent(inout) :: state(cells)
    real(real32), intent(in) :: advection, diffusion
    real(real32) :: next(cells), left, right
    integer :: i
    do i = 1, cells
      left = state(modulo(i - 2, cells) + 1)
      right = state(modulo(i, cells) + 1)
      next(i) = (state(i) - advection * state(i) * (right - left)) &
          + diffusion * ((left - state(i)) + (right - state(i)))
    end do
    state = next
  end subroutine

  subroutine begin_run(s)
    type(simulation_state), intent(inout) :: s
    integer :: i
    do i = 1, cells
      s%seed = iand(s%seed * 1664525_int64 + 1013904223_int64, int(z'FFFFFFFF', int64))
      s%state(i) = real(ishft(s%seed, -8), real32) / 8388608.0 - 1.0
    end do
    do i = 1, 4
      call advance(s%state, 0.0, 0.25)
    end do
    s%samples = 0
  end subroutine

  ! Continues the simulation. batch(:, b, 1) is a state, and batch(:, b, 2) the state after time_steps more steps.
  subroutine next_batch(s, batch)
    type(simulation_state), intent(inout) :: s
    real(real32), intent(out) :: batch(cells, batch_rows, 2)
    integer :: b, t
    do b = 1, batch_rows
      if (s%samples == 0 .or. s%samples == samples_per_run) call begin_run(s)
      s%samples = s%samples + 1
      batch(:, b, 1) = s%state
      do t = 1, time_steps
        call advance(s%state, 0.1, 0.05)
      end do
      batch(:, b, 2) = s%state
    end do
  end subroutine
end module

! The network, with kernels that receive plain arrays.
module network
  use, intrinsic :: iso_fortran_env, only: real32, real64
  use simulation, only: cells, batch_rows
  implicit none
  integer, parameter :: layers = 3

  type :: activations
    real(real32) :: values(cells, batch_rows, 0:layers), targets(cells, batch_rows), slopes(cells, batch_rows)
  end type

contains

  ! Fortran stores columns contiguously, so column o of `weight` is row o in C.
  subroutine forward(a, l, weight, bias)
    type(activations), intent(inout) :: a
    integer, intent(in) :: l
    real(real32), intent(in) :: weight(:, :), bias(:)
    real(real32) :: total
    integer :: b, o, i
    do b = 1, batch_rows
      do o = 1, cells
        total = bias(o)
        do i = 1, cells
          total = total + weight(i, o) * a%values(i, b, l - 1)
        end do
        if (l < layers .and. total < 0) total = 0.1 * total
        a%values(o, b, l) = total
      end do
    end do
  end subroutine

  subroutine backward(a, l, weight, weight_gradient, bias_gradient)
    type(activations), intent(inout) :: a
    integer, intent(in) :: l
    real(real32), intent(in) :: weight(:, :)
    real(real32), intent(inout) :: weight_gradient(:, :), bias_gradient(:)
    real(real32) :: before(cells, batch_rows), slope
    integer :: b, o, i
    before = 0
    do b = 1, batch_rows
      do o = 1, cells
        slope = a%slopes(o, b)
        if (l < layers .and. a%values(o, b, l) < 0) slope = slope * 0.1
        bias_gradient(o) = bias_gradient(o) + slope
        do i = 1, cells
          weight_gradient(i, o) = weight_gradient(i, o) + slope * a%values(i, b, l - 1)
          before(i, b) = before(i, b) + slope * weight(i, o)
        end do
      end do
    end do
    a%slopes = before
  end subroutine

  real(real64) function loss(a)
    type(activations), intent(inout) :: a
    real(real32) :: miss
    integer :: b, i
    loss = 0
    do b = 1, batch_rows
      do i = 1, cells
        miss = (a%values(i, b, 0) + a%values(i, b, layers)) - a%targets(i, b)
        loss = loss + miss * miss
        a%slopes(i, b) = 2 * miss / (batch_rows * cells)
      end do
    end do
    loss = loss / (batch_rows * cells)
  end function
end module

! The ranks that train.
module trainer
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real32, real64
  use mpi_f08
  use aliquot
  use network
  implicit none
  integer, parameter :: evaluate_every = 20, batch_tag = 1, loss_tag = 2, parameter_tag = 3

contains

  subroutine initial(name, first, values)
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: first
    real(real32), intent(out) :: values(:)
    integer(int64) :: i
    do i = 1, size(values, kind=int64)
      values(i) = real(mod((first + i - 2) * 7919, 1001_int64) - 500, real32) / 2500.0
    end do
    if (len(name) == 0) call mpi_abort(mpi_comm_world, 1)
  end subroutine

  ! Ends all ranks after an error. Without `stat`, it would end only this rank, and the others might wait for it.
  subroutine check(stat, errmsg)
    integer, intent(in) :: stat
    character(len=*), intent(in) :: errmsg
    if (stat == aliquot_done) return
    write (error_unit, '(2a)') 'surrogate_mpi_f: ', trim(errmsg)
    call mpi_abort(mpi_comm_world, stat)
  end subroutine

  ! Sends the loss and the parameters from the first trainer to the simulating rank. All trainers call it.
  subroutine send_parameters(world, engine, mean, simulator)
    type(aliquot_world), intent(in) :: world
    type(aliquot_engine), intent(in) :: engine
    real(real64), intent(in) :: mean
    integer, intent(in) :: simulator
    real(real32) :: weight(cells, cells), bias(cells)
    character(len=1000) :: errmsg
    character(len=8) :: name
    integer :: l, stat
    if (world%rank() == 0) call mpi_send(mean, 1, mpi_double_precision, simulator, loss_tag, mpi_comm_world)
    do l = 1, layers
      write (name, '(a,i0)') 'layer.', l - 1
      call engine%read(trim(name) // '.weight', weight, stat, errmsg)
      call check(stat, errmsg)
      call engine%read(trim(name) // '.bias', bias, stat, errmsg)
      call check(stat, errmsg)
      if (world%rank() /= 0) cycle
      call mpi_send(weight, size(weight), mpi_real, simulator, parameter_tag, mpi_comm_world)
      call mpi_send(bias, size(bias), mpi_real, simulator, parameter_tag, mpi_comm_world)
    end do
  end subroutine

  subroutine train(comm, simulator, steps, zero_stage)
    type(mpi_comm), intent(in) :: comm
    integer, intent(in) :: simulator, steps, zero_stage
    type(aliquot_options) :: options
    type(aliquot_world) :: world
    type(aliquot_engine) :: engine
    type(aliquot_parameter) :: weights(layers), biases(layers)
    type(activations) :: a
    real(real32) :: batch(cells, batch_rows, 2)
    real(real32), pointer :: weight(:, :), weight_gradient(:, :), bias(:), bias_gradient(:)
    real(real64) :: mean
    character(len=1000) :: errmsg
    character(len=8) :: name
    integer :: l, unit, step, stat

    call options%set('zero-stage', zero_stage, stat, errmsg)
    call check(stat, errmsg)
    call options%set('lr', 0.003, stat, errmsg)
    call check(stat, errmsg)
    call options%set('clip', 0, stat, errmsg)
    call check(stat, errmsg)
    call options%set('max-skipped', 1, stat, errmsg)
    call check(stat, errmsg)
    call world%from_mpi(comm%mpi_val, options, stat, errmsg)
    call check(stat, errmsg)
    call engine%create(world, options, stat, errmsg)
    call check(stat, errmsg)
    do l = 1, layers
      write (name, '(a,i0)') 'layer.', l - 1
      call engine%add_unit(name, unit, stat, errmsg)
      call check(stat, errmsg)
      call engine%add_parameter(unit, 'weight', [cells, cells], weights(l), stat=stat, errmsg=errmsg)
      call check(stat, errmsg)
      call engine%add_parameter(unit, 'bias', [cells], biases(l), decayed=.false., stat=stat, errmsg=errmsg)
      call check(stat, errmsg)
    end do
    call engine%materialize(initial, stat, errmsg)
    call check(stat, errmsg)

    do step = 1, steps
      call mpi_recv(batch, size(batch), mpi_real, simulator, batch_tag, mpi_comm_world, mpi_status_ignore)
      a%values(:, :, 0) = batch(:, :, 1)
      a%targets = batch(:, :, 2)
      call engine%micro_batch(stat, errmsg)
      call check(stat, errmsg)
      do l = 1, layers
        call engine%forward(l, stat, errmsg)
        call check(stat, errmsg)
        call weights(l)%values(weight)  ! valid until close()
        call biases(l)%values(bias)
        call forward(a, l, weight, bias)
        call engine%close(stat, errmsg)
        call check(stat, errmsg)
      end do
      mean = loss(a) / world%rank_count()
      do l = layers, 1, -1
        call engine%backward(l, stat, errmsg)
        call check(stat, errmsg)
        call weights(l)%values(weight)
        call weights(l)%gradient(weight_gradient)
        call biases(l)%gradient(bias_gradient)
        call backward(a, l, weight, weight_gradient, bias_gradient)
        call engine%close(stat, errmsg)
        call check(stat, errmsg)
      end do
      call engine%step(stat=stat, errmsg=errmsg)
      call check(stat, errmsg)
      call world%sum(mean, stat, errmsg)
      call check(stat, errmsg)
      if (mod(step, evaluate_every) == 0) call send_parameters(world, engine, mean, simulator)
    end do
  end subroutine  ! frees the engine and the world
end module

program surrogate_mpi
  use trainer
  use simulation
  implicit none
  integer :: level, rank, rank_count, steps, zero_stage
  type(mpi_comm) :: trainers

  steps = argument(1, 100)
  zero_stage = argument(2, 3)
  call mpi_init_thread(mpi_thread_multiple, level)  ! Aliquot calls MPI on several threads
  call mpi_comm_rank(mpi_comm_world, rank)
  call mpi_comm_size(mpi_comm_world, rank_count)
  if (rank_count < 2) then
    print '(a)', 'surrogate_mpi_f needs at least 2 ranks: start it with mpirun -n 4'
    call mpi_abort(mpi_comm_world, 1)
  end if
  call mpi_comm_split(mpi_comm_world, merge(mpi_undefined, 0, rank == rank_count - 1), rank, trainers)
  if (rank == rank_count - 1) then
    call simulate(rank_count - 1)
  else
    call train(trainers, rank_count - 1, steps, zero_stage)
    call mpi_comm_free(trainers)
  end if
  call mpi_finalize()

contains

  integer function argument(index, default)
    integer, intent(in) :: index, default
    character(len=16) :: word
    argument = default
    if (command_argument_count() < index) return
    call get_command_argument(index, word)
    read (word, *) argument
  end function

  subroutine simulate(trainer_count)
    integer, intent(in) :: trainer_count
    type(simulation_state) :: own, other
    real(real32) :: batch(cells, batch_rows, 2), test(cells, batch_rows, 2)
    integer :: step, t
    own%seed = 1
    other%seed = 2
    call next_batch(other, test)
    do step = 1, steps
      do t = 0, trainer_count - 1
        call next_batch(own, batch)
        call mpi_send(batch, size(batch), mpi_real, t, batch_tag, mpi_comm_world)
      end do
      if (mod(step, evaluate_every) == 0) call evaluate(test, step)
    end do
  end subroutine

  ! Receives the loss and the parameters from the first trainer, and evaluates the network on a batch.
  subroutine evaluate(batch, step)
    real(real32), intent(in) :: batch(cells, batch_rows, 2)
    integer, intent(in) :: step
    type(activations) :: a
    real(real32) :: weight(cells, cells), bias(cells)
    real(real64) :: mean
    integer :: l
    call mpi_recv(mean, 1, mpi_double_precision, 0, loss_tag, mpi_comm_world, mpi_status_ignore)
    a%values(:, :, 0) = batch(:, :, 1)
    a%targets = batch(:, :, 2)
    do l = 1, layers
      call mpi_recv(weight, size(weight), mpi_real, 0, parameter_tag, mpi_comm_world, mpi_status_ignore)
      call mpi_recv(bias, size(bias), mpi_real, 0, parameter_tag, mpi_comm_world, mpi_status_ignore)
      call forward(a, l, weight, bias)
    end do
    print '(a,i0,a,es15.8,a,es15.8)', 'step ', step, ' loss ', mean, ' error ', loss(a)
  end subroutine
end program
