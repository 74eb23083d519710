! The Fortran interface of Aliquot. It calls the C interface, <aliquot/c.h>, which documents the functions in full.
!
! Errors: every procedure that can fail has the optional arguments `stat` and `errmsg`. `stat` becomes aliquot_done or
! an error status, and `errmsg` the message of an error. Without `stat`, an error prints its message and stops the program
! with the status as its exit code.
! Numbers: units, elements and dimensions are counted from 1, and ranks from 0, as in MPI.
! Shapes: an array of shape [m, n] has the shape [n, m] in C, in checkpoints and in messages, as in HDF5. The memory is
! the same.
! Threads: a rank may be a thread of the process. Procedures that ranks run then need the attribute recursive, or a
! compiler option such as -frecursive, so that the ranks do not share local arrays.
! Objects: options, worlds and engines, and arrays of them, are freed when they go out of scope, or by free(). They
! cannot be copied: an assignment stops the program. Do not copy them with allocate(..., source=...) either, because
! Fortran cannot refuse that, and the object would be freed twice.
module aliquot
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit, int32, int64, real32, real64
  use aliquot_c
  implicit none
  private

  public :: aliquot_done, aliquot_usage, aliquot_unavailable, aliquot_fault, aliquot_not_finite, aliquot_bad_checkpoint
  public :: aliquot_message, aliquot_version, aliquot_install_fault_names, aliquot_log_to_standard_error
  public :: aliquot_run, aliquot_run_threads, aliquot_body, aliquot_initialize

  ! Options by name. set() refuses an unknown name and an invalid value at once; <aliquot/c.h> lists the options.
  type, public :: aliquot_options
    private
    type(c_ptr) :: handle = c_null_ptr
  contains
    procedure, private :: set_text, set_int32, set_int64, set_real32, set_real64, set_logical, refuse_options_copy
    generic :: set => set_text, set_int32, set_int64, set_real32, set_real64, set_logical  ! set(name, value)
    procedure :: free => free_options
    generic :: assignment(=) => refuse_options_copy
    final :: finalize_options
  end type

  ! The C handle of a world. It is freed with the last object that uses it: the world, or one of its engines.
  type :: world_owner
    type(c_ptr) :: handle = c_null_ptr
    integer :: users = 0
  end type

  ! One rank of the world.
  type, public :: aliquot_world
    private
    type(world_owner), pointer :: owner => null()
  contains
    procedure :: from_environment  ! from_environment(options): the ranks that mpirun or srun started
    procedure :: from_mpi          ! from_mpi(comm, options): the ranks of an MPI communicator, which may be a part
    procedure :: rank => world_rank
    procedure :: rank_count => world_rank_count
    procedure, private :: sum_value, sum_values, refuse_world_copy
    generic :: sum => sum_value, sum_values  ! sum(x): replaces x, real64, by its sum over all ranks
    procedure :: free => free_world
    procedure :: c_handle => world_c_handle  ! for the functions of module aliquot_c
    generic :: assignment(=) => refuse_world_copy
    final :: finalize_world
  end type

  ! The pointers of one parameter, which the library sets.
  type :: parameter_cell
    type(c_ptr) :: value = c_null_ptr, gradient = c_null_ptr
    integer(int64), allocatable :: shape(:)
    type(parameter_cell), pointer :: next => null()
  end type

  ! A parameter of the model. Valid until its engine is freed, and may be copied.
  type, public :: aliquot_parameter
    private
    type(parameter_cell), pointer :: cell => null()
  contains
    procedure, private :: values_1, values_2, values_3, values_4, gradient_1, gradient_2, gradient_3, gradient_4
    ! values(p) and gradient(p) make the real32 pointer `p` point to the values or the gradient. They are accessible
    ! while a use with the parameter's unit is open, and gradients only in backward. Otherwise `p` is null, or an access
    ! through it ends the program.
    generic :: values => values_1, values_2, values_3, values_4
    generic :: gradient => gradient_1, gradient_2, gradient_3, gradient_4
  end type

  ! Results of a step.
  type, public :: aliquot_report
    integer(int64) :: step = 0            ! from 1; skipped steps count
    real(real64) :: gradient_norm = 0, learning_rate = 0, loss_scale = 0
    logical :: skipped = .false.          ! no update: a gradient was not finite, or a rank abandoned the step
    integer :: abandoned_by = -1          ! lowest rank that abandoned the step, or -1
    character(len=:), allocatable :: first_not_finite  ! first parameter with a gradient that was not finite, or ""
  end type

  ! Peak memory of this rank in bytes, by category.
  type, public :: aliquot_memory
    integer(int64) :: parameters = 0, gradients = 0, optimizer = 0, slots = 0, communication = 0, staging = 0
    integer(int64) :: activations = 0, peak = 0
  end type

  type :: engine_owner
    type(c_ptr) :: handle = c_null_ptr
    type(world_owner), pointer :: world => null()
    type(parameter_cell), pointer :: cells => null()
  end type

  type, public :: aliquot_engine
    private
    type(engine_owner), pointer :: owner => null()
  contains
    procedure :: create  ! create(world, options)
    procedure :: free => free_engine
    ! Declarations, the same on every rank.
    procedure :: add_unit           ! add_unit(name, unit): parameters that are gathered and updated together
    procedure :: add_parameter      ! add_parameter(unit, name, shape, parameter, trainable, decayed, matrix, ...)
    procedure :: assigns_gradients  ! assigns_gradients(unit): its kernels overwrite gradients, and do not add to them
    procedure :: declare_order      ! declare_order(units, unit_counts): use u has unit_counts(u) of `units`, default 1
    procedure :: planned_memory, measured_memory
    procedure :: materialize        ! materialize(initialize): allocates memory and sets the initial values
    ! A step: micro_batch(), forward and backward of each unit, step().
    procedure :: micro_batch
    procedure, private :: forward_unit, backward_unit, evaluate_unit, forward_units, backward_units, evaluate_units
    generic :: forward => forward_unit, forward_units    ! opens the next use, of a unit or of an array of units
    generic :: backward => backward_unit, backward_units
    generic :: evaluate => evaluate_unit, evaluate_units
    procedure :: close => close_use
    procedure :: skip               ! skip(unit): this rank does not run the next use
    procedure :: abandon            ! abandons the step on all ranks
    procedure :: step
    procedure :: set_learning_rate, set_trainable, loss_scale, step_count
    ! State, between steps.
    procedure, private :: read_1, read_2, read_3, read_4
    generic :: read => read_1, read_2, read_3, read_4    ! read(name, values): a full parameter, on every rank
    procedure :: check_copies, save => save_checkpoint, load, load_newest, load_weights
    procedure, private :: set_scalar_int32, set_scalar_int64, set_scalar_int64s, set_scalar_real64, &
        set_scalar_real64s, set_scalar_text, get_scalar_int32, get_scalar_int64, get_scalar_int64s, &
        get_scalar_real64, get_scalar_real64s, get_scalar_text, refuse_engine_copy
    ! set_scalar(name, value) and get_scalar(name, value): values of the program that checkpoints contain.
    generic :: set_scalar => set_scalar_int32, set_scalar_int64, set_scalar_int64s, set_scalar_real64, &
        set_scalar_real64s, set_scalar_text
    generic :: get_scalar => get_scalar_int32, get_scalar_int64, get_scalar_int64s, get_scalar_real64, &
        get_scalar_real64s, get_scalar_text
    procedure :: has_scalar
    procedure :: c_handle => engine_c_handle  ! for the functions of module aliquot_c
    generic :: assignment(=) => refuse_engine_copy
    final :: finalize_engine
  end type

  abstract interface
    ! Runs on each rank. `stat` is 0; set it to the status of a failed call to stop all ranks.
    subroutine aliquot_body(world, stat)
      import
      type(aliquot_world), intent(inout) :: world
      integer, intent(inout) :: stat
    end subroutine
    ! Sets the initial values of elements first, first + 1, ... of a parameter, in the order of memory. An element has
    ! the same value on every rank. `name` is "UNIT.NAME".
    subroutine aliquot_initialize(name, first, values)
      import
      character(len=*), intent(in) :: name
      integer(int64), intent(in) :: first
      real(real32), intent(out) :: values(:)
    end subroutine
    integer(c_int) function run_ranks(rank_count, body, context, options) bind(C)
      import
      integer(c_int), value :: rank_count
      type(c_funptr), value :: body
      type(c_ptr), value :: context, options
    end function
  end interface
  interface
    integer(c_size_t) function c_strlen(text) bind(C, name='strlen')
      import
      type(c_ptr), value :: text
    end function
  end interface

  type :: body_holder
    procedure(aliquot_body), pointer, nopass :: body => null()
  end type
  type :: initialize_holder
    procedure(aliquot_initialize), pointer, nopass :: initialize => null()
  end type

contains

  ! Messages and errors ---------------------------------------------------------------------------------------------

  ! The message of the last call of this thread that failed in the library. A value that get_scalar() refuses because
  ! it has another size is described only in `errmsg`.
  function aliquot_message() result(text)
    character(len=:), allocatable :: text
    text = text_of(aliquot_c_message())
  end function

  function aliquot_version() result(text)
    character(len=:), allocatable :: text
    text = text_of(aliquot_c_version())
  end function

  ! After this call, an access to a parameter outside of an open use prints the name of the parameter.
  subroutine aliquot_install_fault_names(stat, errmsg)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_install_fault_names(), stat, errmsg)
  end subroutine

  subroutine aliquot_log_to_standard_error(stat, errmsg)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_log_to_standard_error(), stat, errmsg)
  end subroutine

  ! Reports the status of a call. Stops the program after an error if there is no `stat`. The message of an error is
  ! `own_message`, or that of the library.
  recursive subroutine finish(status, stat, errmsg, own_message)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    character(len=*), intent(in), optional :: own_message
    character(len=:), allocatable :: message
    if (present(stat)) stat = status
    if (status == aliquot_done) return
    if (present(own_message)) then
      message = own_message
    else
      message = aliquot_message()
    end if
    if (present(errmsg)) errmsg = message
    if (present(stat)) return
    write (error_unit, '(2a)') 'aliquot: ', message
    stop status, quiet=.true.
  end subroutine

  subroutine refuse_copy(type_name)
    character(len=*), intent(in) :: type_name
    write (error_unit, '(3a)') 'aliquot: an object of type ', type_name, ' was copied: pass it as an argument instead'
    stop aliquot_usage, quiet=.true.
  end subroutine

  recursive function text_of(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer(c_size_t) :: length, i
    if (.not. c_associated(pointer)) then
      text = ''
      return
    end if
    length = c_strlen(pointer)
    allocate (character(len=length) :: text)
    call c_f_pointer(pointer, letters, [length])
    do i = 1, length
      text(i:i) = letters(i)
    end do
  end function

  integer(c_int) pure function flag(optional_value, default, inverted) result(number)
    logical, intent(in), optional :: optional_value
    logical, intent(in) :: default, inverted
    logical :: chosen
    chosen = default
    if (present(optional_value)) chosen = optional_value
    number = merge(1, 0, chosen .neqv. inverted)
  end function

  ! Options -----------------------------------------------------------------------------------------------------------

  subroutine set_text(self, name, value, stat, errmsg)
    class(aliquot_options), intent(inout) :: self
    character(len=*), intent(in) :: name, value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(c_int) :: status
    status = aliquot_done
    if (.not. c_associated(self%handle)) status = aliquot_c_options_create(self%handle)
    if (status == aliquot_done) &
        status = aliquot_c_options_set(self%handle, trim(name) // c_null_char, trim(value) // c_null_char)
    call finish(status, stat, errmsg)
  end subroutine

  subroutine set_int32(self, name, value, stat, errmsg)
    class(aliquot_options), intent(inout) :: self
    character(len=*), intent(in) :: name
    integer(int32), intent(in) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call self%set_int64(name, int(value, int64), stat, errmsg)
  end subroutine

  recursive subroutine set_int64(self, name, value, stat, errmsg)
    class(aliquot_options), intent(inout) :: self
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    character(len=24) :: text
    write (text, '(i0)') value
    call self%set_text(name, text, stat, errmsg)
  end subroutine

  ! Nine and seventeen significant digits identify every real32 and real64 value.
  recursive subroutine set_real32(self, name, value, stat, errmsg)
    class(aliquot_options), intent(inout) :: self
    character(len=*), intent(in) :: name
    real(real32), intent(in) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    character(len=32) :: text
    write (text, '(es16.8)') value
    call self%set_text(name, adjustl(text), stat, errmsg)
  end subroutine

  recursive subroutine set_real64(self, name, value, stat, errmsg)
    class(aliquot_options), intent(inout) :: self
    character(len=*), intent(in) :: name
    real(real64), intent(in) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    character(len=32) :: text
    write (text, '(es25.16e3)') value
    call self%set_text(name, adjustl(text), stat, errmsg)
  end subroutine

  subroutine set_logical(self, name, value, stat, errmsg)
    class(aliquot_options), intent(inout) :: self
    character(len=*), intent(in) :: name
    logical, intent(in) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call self%set_text(name, merge('on ', 'off', value), stat, errmsg)
  end subroutine

  subroutine free_options(self)
    class(aliquot_options), intent(inout) :: self
    if (c_associated(self%handle)) call aliquot_c_options_free(self%handle)
    self%handle = c_null_ptr
  end subroutine

  impure elemental subroutine finalize_options(self)
    type(aliquot_options), intent(inout) :: self
    call self%free()
  end subroutine

  impure elemental subroutine refuse_options_copy(self, from)
    class(aliquot_options), intent(inout) :: self
    class(aliquot_options), intent(in) :: from
    if (c_associated(self%handle) .or. c_associated(from%handle)) call refuse_copy('aliquot_options')
  end subroutine

  type(c_ptr) function handle_of(options)
    type(aliquot_options), intent(in), optional :: options
    handle_of = c_null_ptr
    if (present(options)) handle_of = options%handle
  end function

  ! Worlds ------------------------------------------------------------------------------------------------------------

  subroutine from_environment(self, options, stat, errmsg)
    class(aliquot_world), intent(inout) :: self
    type(aliquot_options), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(c_ptr) :: made
    integer(c_int) :: status
    status = aliquot_c_world_from_environment(handle_of(options), made)
    if (status == aliquot_done) call own_world(self, made)
    call finish(status, stat, errmsg)
  end subroutine

  ! With module mpi_f08, pass comm%mpi_val. The program finalizes MPI after it has freed the world.
  subroutine from_mpi(self, comm, options, stat, errmsg)
    class(aliquot_world), intent(inout) :: self
    integer, intent(in) :: comm
    type(aliquot_options), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(c_ptr) :: made
    integer(c_int) :: status
    status = aliquot_c_world_from_mpi_f(int(comm, c_int), handle_of(options), made)
    if (status == aliquot_done) call own_world(self, made)
    call finish(status, stat, errmsg)
  end subroutine

  subroutine own_world(self, handle)
    class(aliquot_world), intent(inout) :: self
    type(c_ptr), intent(in) :: handle
    call self%free()
    allocate (self%owner)
    self%owner%handle = handle
    self%owner%users = 1
  end subroutine

  integer function world_rank(self)
    class(aliquot_world), intent(in) :: self
    world_rank = aliquot_c_rank(self%c_handle())
  end function

  integer function world_rank_count(self)
    class(aliquot_world), intent(in) :: self
    world_rank_count = aliquot_c_rank_count(self%c_handle())
  end function

  recursive subroutine sum_value(self, value, stat, errmsg)
    class(aliquot_world), intent(in) :: self
    real(real64), intent(inout) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    real(real64) :: values(1)
    values(1) = value
    call self%sum_values(values, stat, errmsg)
    value = values(1)
  end subroutine

  subroutine sum_values(self, values, stat, errmsg)
    class(aliquot_world), intent(in) :: self
    real(real64), intent(inout) :: values(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_sum(self%c_handle(), values, size(values, kind=c_int)), stat, errmsg)
  end subroutine

  type(c_ptr) function world_c_handle(self)
    class(aliquot_world), intent(in) :: self
    if (.not. associated(self%owner)) then
      write (error_unit, '(a)') 'aliquot: a world was used before from_environment() or from_mpi()'
      stop aliquot_usage, quiet=.true.
    end if
    world_c_handle = self%owner%handle
  end function

  subroutine release_world(owner)
    type(world_owner), pointer, intent(inout) :: owner
    if (.not. associated(owner)) return
    owner%users = owner%users - 1
    if (owner%users == 0) then
      call aliquot_c_world_free(owner%handle)
      deallocate (owner)
    end if
    owner => null()
  end subroutine

  subroutine free_world(self)
    class(aliquot_world), intent(inout) :: self
    call release_world(self%owner)
  end subroutine

  impure elemental subroutine finalize_world(self)
    type(aliquot_world), intent(inout) :: self
    call self%free()
  end subroutine

  impure elemental subroutine refuse_world_copy(self, from)
    class(aliquot_world), intent(inout) :: self
    class(aliquot_world), intent(in) :: from
    if (associated(self%owner) .or. associated(from%owner)) call refuse_copy('aliquot_world')
  end subroutine

  ! Runs `body` on `rank_count` threads, one for each rank. Under mpirun or srun this process is one rank instead, and
  ! `rank_count` has no effect.
  subroutine aliquot_run(rank_count, body, options, stat, errmsg)
    integer, intent(in) :: rank_count
    procedure(aliquot_body) :: body
    type(aliquot_options), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call run_with(aliquot_c_world_run, rank_count, body, options, stat, errmsg)
  end subroutine

  ! Runs `body` on `rank_count` threads of this process, one for each rank.
  subroutine aliquot_run_threads(rank_count, body, options, stat, errmsg)
    integer, intent(in) :: rank_count
    procedure(aliquot_body) :: body
    type(aliquot_options), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call run_with(aliquot_c_world_threads, rank_count, body, options, stat, errmsg)
  end subroutine

  subroutine run_with(run, rank_count, body, options, stat, errmsg)
    procedure(run_ranks) :: run
    integer, intent(in) :: rank_count
    procedure(aliquot_body) :: body
    type(aliquot_options), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(body_holder), pointer :: holder
    integer(c_int) :: status
    allocate (holder)
    holder%body => body
    status = run(int(rank_count, c_int), c_funloc(run_body), c_loc(holder), handle_of(options))
    deallocate (holder)
    call finish(status, stat, errmsg)
  end subroutine

  recursive integer(c_int) function run_body(world, context) bind(C, name='') result(status)
    type(c_ptr), value :: world, context
    type(body_holder), pointer :: holder
    type(aliquot_world), allocatable :: own
    integer :: stat
    call c_f_pointer(context, holder)
    allocate (own)
    call own_world(own, world)
    stat = 0
    call holder%body(own, stat)
    call own%free()
    status = int(stat, c_int)
  end function

  ! Declarations ------------------------------------------------------------------------------------------------------

  subroutine create(self, world, options, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    type(aliquot_world), intent(in) :: world
    type(aliquot_options), intent(in), optional :: options
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(c_ptr) :: made
    integer(c_int) :: status
    call self%free()
    status = aliquot_c_engine_create(world%c_handle(), handle_of(options), made)
    if (status == aliquot_done) then
      allocate (self%owner)
      self%owner%handle = made
      self%owner%world => world%owner
      self%owner%world%users = self%owner%world%users + 1
    end if
    call finish(status, stat, errmsg)
  end subroutine

  subroutine free_engine(self)
    class(aliquot_engine), intent(inout) :: self
    type(parameter_cell), pointer :: next
    if (.not. associated(self%owner)) return
    call aliquot_c_engine_free(self%owner%handle)  ! before the cells, in which it sets pointers
    do while (associated(self%owner%cells))
      next => self%owner%cells%next
      deallocate (self%owner%cells)
      self%owner%cells => next
    end do
    call release_world(self%owner%world)
    deallocate (self%owner)
  end subroutine

  impure elemental subroutine finalize_engine(self)
    type(aliquot_engine), intent(inout) :: self
    call self%free()
  end subroutine

  impure elemental subroutine refuse_engine_copy(self, from)
    class(aliquot_engine), intent(inout) :: self
    class(aliquot_engine), intent(in) :: from
    if (associated(self%owner) .or. associated(from%owner)) call refuse_copy('aliquot_engine')
  end subroutine

  type(c_ptr) function engine_c_handle(self)
    class(aliquot_engine), intent(in) :: self
    if (.not. associated(self%owner)) then
      write (error_unit, '(a)') 'aliquot: an engine was used before create()'
      stop aliquot_usage, quiet=.true.
    end if
    engine_c_handle = self%owner%handle
  end function

  subroutine add_unit(self, name, unit, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: name
    integer, intent(out), optional :: unit
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(c_int) :: number, status
    number = -1
    status = aliquot_c_add_unit(self%c_handle(), trim(name) // c_null_char, number)
    if (present(unit)) unit = number + 1
    call finish(status, stat, errmsg)
  end subroutine

  ! A parameter that is not `trainable` has no gradient. One that is not `decayed` has no weight decay. `matrix` is
  ! false for a matrix that Muon must not orthogonalize.
  recursive subroutine add_parameter(self, unit, name, shape, parameter, trainable, decayed, matrix, lr_scale, &
      decay_scale, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: unit
    character(len=*), intent(in) :: name
    integer, intent(in) :: shape(:)
    type(aliquot_parameter), intent(out) :: parameter
    logical, intent(in), optional :: trainable, decayed, matrix
    real(real32), intent(in), optional :: lr_scale, decay_scale
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(aliquot_c_parameter) :: declared
    type(parameter_cell), pointer :: cell
    character(kind=c_char), allocatable, target :: letters(:)
    integer(c_int64_t), allocatable, target :: extents(:)
    type(c_ptr) :: engine
    integer :: i
    engine = self%c_handle()
    allocate (letters(len_trim(name) + 1))
    do i = 1, len_trim(name)
      letters(i) = name(i:i)
    end do
    letters(len_trim(name) + 1) = c_null_char
    extents = int(shape(size(shape):1:-1), c_int64_t)
    allocate (cell)
    cell%shape = int(shape, int64)
    cell%next => self%owner%cells  ! the engine may have taken the addresses even if the call fails
    self%owner%cells => cell
    declared%name = c_loc(letters)
    declared%dimensions = size(shape, kind=c_int)
    if (size(shape) > 0) declared%shape = c_loc(extents)
    declared%value = c_loc(cell%value)
    declared%frozen = flag(trainable, .true., .true.)
    if (declared%frozen == 0) declared%gradient = c_loc(cell%gradient)
    declared%not_decayed = flag(decayed, .true., .true.)
    declared%no_matrix = flag(matrix, .true., .true.)
    if (present(lr_scale)) declared%lr_scale = lr_scale
    if (present(decay_scale)) declared%decay_scale = decay_scale
    parameter%cell => cell
    call finish(aliquot_c_add_parameter(engine, int(unit - 1, c_int), declared), stat, errmsg)
  end subroutine

  subroutine assigns_gradients(self, unit, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: unit
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_assigns_gradients(self%c_handle(), int(unit - 1, c_int)), stat, errmsg)
  end subroutine

  recursive subroutine declare_order(self, units, unit_counts, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: units(:)
    integer, intent(in), optional :: unit_counts(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(c_int), allocatable :: counts(:)
    if (present(unit_counts)) then
      counts = int(unit_counts, c_int)
    else
      allocate (counts(size(units)), source=1_c_int)
    end if
    call finish(aliquot_c_declare_order(self%c_handle(), size(counts, kind=c_int), counts, int(units - 1, c_int)), &
        stat, errmsg)
  end subroutine

  ! The memory that the plan needs. May be called before materialize().
  subroutine planned_memory(self, memory, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    type(aliquot_memory), intent(out) :: memory
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(aliquot_c_memory) :: bytes
    integer(c_int) :: status
    status = aliquot_c_planned_memory(self%c_handle(), bytes)
    if (status == aliquot_done) memory = to_memory(bytes)
    call finish(status, stat, errmsg)
  end subroutine

  subroutine measured_memory(self, memory, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    type(aliquot_memory), intent(out) :: memory
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(aliquot_c_memory) :: bytes
    integer(c_int) :: status
    status = aliquot_c_measured_memory(self%c_handle(), bytes)
    if (status == aliquot_done) memory = to_memory(bytes)
    call finish(status, stat, errmsg)
  end subroutine

  type(aliquot_memory) pure function to_memory(bytes) result(memory)
    type(aliquot_c_memory), intent(in) :: bytes
    memory = aliquot_memory(bytes%parameters, bytes%gradients, bytes%optimizer, bytes%slots, bytes%communication, &
        bytes%staging, bytes%activations, bytes%peak)
  end function

  subroutine materialize(self, initialize, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    procedure(aliquot_initialize) :: initialize
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(initialize_holder), pointer :: holder
    integer(c_int) :: status
    allocate (holder)
    holder%initialize => initialize
    status = aliquot_c_materialize(self%c_handle(), c_funloc(run_initialize), c_loc(holder))
    deallocate (holder)
    call finish(status, stat, errmsg)
  end subroutine

  recursive integer(c_int) function run_initialize(context, parameter, offset, count, values) bind(C, name='') &
      result(status)
    type(c_ptr), value :: context, parameter
    integer(c_int64_t), value :: offset, count
    type(c_ptr), value :: values
    type(initialize_holder), pointer :: holder
    real(real32), pointer :: elements(:)
    call c_f_pointer(context, holder)
    call c_f_pointer(values, elements, [count])
    call holder%initialize(text_of(parameter), offset + 1, elements)
    status = aliquot_done
  end function

  ! Pointers to parameters --------------------------------------------------------------------------------------------

  ! Returns the address, or a null address if `rank` is not that of the declared shape.
  type(c_ptr) function address_of(self, of_gradient, rank)
    class(aliquot_parameter), intent(in) :: self
    logical, intent(in) :: of_gradient
    integer, intent(in) :: rank
    if (.not. associated(self%cell)) then
      write (error_unit, '(a)') 'aliquot: a parameter was used before add_parameter()'
      stop aliquot_usage, quiet=.true.
    end if
    if (size(self%cell%shape) /= rank) then
      write (error_unit, '(2(a,i0))') 'aliquot: a pointer of rank ', rank, &
          ' was passed for a parameter with this number of dimensions: ', size(self%cell%shape)
      stop aliquot_usage, quiet=.true.
    end if
    address_of = self%cell%value
    if (of_gradient) address_of = self%cell%gradient
  end function

  subroutine values_1(self, pointer)
    class(aliquot_parameter), intent(in) :: self
    real(real32), pointer, intent(out) :: pointer(:)
    type(c_ptr) :: address
    pointer => null()
    address = address_of(self, .false., 1)
    if (c_associated(address)) call c_f_pointer(address, pointer, self%cell%shape)
  end subroutine

  subroutine values_2(self, pointer)
    class(aliquot_parameter), intent(in) :: self
    real(real32), pointer, intent(out) :: pointer(:, :)
    type(c_ptr) :: address
    pointer => null()
    address = address_of(self, .false., 2)
    if (c_associated(address)) call c_f_pointer(address, pointer, self%cell%shape)
  end subroutine

  subroutine values_3(self, pointer)
    class(aliquot_parameter), intent(in) :: self
    real(real32), pointer, intent(out) :: pointer(:, :, :)
    type(c_ptr) :: address
    pointer => null()
    address = address_of(self, .false., 3)
    if (c_associated(address)) call c_f_pointer(address, pointer, self%cell%shape)
  end subroutine

  subroutine values_4(self, pointer)
    class(aliquot_parameter), intent(in) :: self
    real(real32), pointer, intent(out) :: pointer(:, :, :, :)
    type(c_ptr) :: address
    pointer => null()
    address = address_of(self, .false., 4)
    if (c_associated(address)) call c_f_pointer(address, pointer, self%cell%shape)
  end subroutine

  subroutine gradient_1(self, pointer)
    class(aliquot_parameter), intent(in) :: self
    real(real32), pointer, intent(out) :: pointer(:)
    type(c_ptr) :: address
    pointer => null()
    address = address_of(self, .true., 1)
    if (c_associated(address)) call c_f_pointer(address, pointer, self%cell%shape)
  end subroutine

  subroutine gradient_2(self, pointer)
    class(aliquot_parameter), intent(in) :: self
    real(real32), pointer, intent(out) :: pointer(:, :)
    type(c_ptr) :: address
    pointer => null()
    address = address_of(self, .true., 2)
    if (c_associated(address)) call c_f_pointer(address, pointer, self%cell%shape)
  end subroutine

  subroutine gradient_3(self, pointer)
    class(aliquot_parameter), intent(in) :: self
    real(real32), pointer, intent(out) :: pointer(:, :, :)
    type(c_ptr) :: address
    pointer => null()
    address = address_of(self, .true., 3)
    if (c_associated(address)) call c_f_pointer(address, pointer, self%cell%shape)
  end subroutine

  subroutine gradient_4(self, pointer)
    class(aliquot_parameter), intent(in) :: self
    real(real32), pointer, intent(out) :: pointer(:, :, :, :)
    type(c_ptr) :: address
    pointer => null()
    address = address_of(self, .true., 4)
    if (c_associated(address)) call c_f_pointer(address, pointer, self%cell%shape)
  end subroutine

  ! Steps -------------------------------------------------------------------------------------------------------------

  subroutine micro_batch(self, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_micro_batch(self%c_handle()), stat, errmsg)
  end subroutine

  subroutine forward_unit(self, unit, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: unit
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_forward(self%c_handle(), int(unit - 1, c_int)), stat, errmsg)
  end subroutine

  subroutine backward_unit(self, unit, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: unit
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_backward(self%c_handle(), int(unit - 1, c_int)), stat, errmsg)
  end subroutine

  subroutine evaluate_unit(self, unit, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: unit
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_evaluate(self%c_handle(), int(unit - 1, c_int)), stat, errmsg)
  end subroutine

  subroutine forward_units(self, units, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: units(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call open_use(self, aliquot_c_use_forward, units, stat, errmsg)
  end subroutine

  subroutine backward_units(self, units, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: units(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call open_use(self, aliquot_c_use_backward, units, stat, errmsg)
  end subroutine

  subroutine evaluate_units(self, units, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: units(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call open_use(self, aliquot_c_use_evaluate, units, stat, errmsg)
  end subroutine

  subroutine open_use(self, kind, units, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer(c_int), intent(in) :: kind
    integer, intent(in) :: units(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_open(self%c_handle(), kind, size(units, kind=c_int), int(units - 1, c_int)), stat, errmsg)
  end subroutine

  subroutine close_use(self, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_close(self%c_handle()), stat, errmsg)
  end subroutine

  recursive subroutine skip(self, unit, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(in) :: unit
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_skip(self%c_handle(), 1_c_int, [int(unit - 1, c_int)]), stat, errmsg)
  end subroutine

  subroutine abandon(self, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_abandon(self%c_handle()), stat, errmsg)
  end subroutine

  ! A skipped step is not an error: see report%skipped and the option max-skipped.
  recursive subroutine step(self, report, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    type(aliquot_report), intent(out), optional :: report
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(aliquot_c_step_report) :: of_step
    integer(c_int) :: status
    status = aliquot_c_step(self%c_handle(), of_step)
    if (present(report) .and. status == aliquot_done) then
      report%step = of_step%step
      report%gradient_norm = of_step%gradient_norm
      report%learning_rate = of_step%learning_rate
      report%loss_scale = of_step%loss_scale
      report%skipped = of_step%skipped /= 0
      report%abandoned_by = of_step%abandoned_by
      report%first_not_finite = text_of(of_step%first_not_finite)
    end if
    call finish(status, stat, errmsg)
  end subroutine

  subroutine set_learning_rate(self, rate, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    real(real64), intent(in) :: rate
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_set_learning_rate(self%c_handle(), rate), stat, errmsg)
  end subroutine

  ! Unfreezes or freezes the parameters whose names begin with `prefix`.
  subroutine set_trainable(self, prefix, trainable, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: prefix
    logical, intent(in) :: trainable
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_set_trainable(self%c_handle(), trim(prefix) // c_null_char, &
        merge(1_c_int, 0_c_int, trainable)), stat, errmsg)
  end subroutine

  ! The factor by which the model multiplies the loss of this step.
  real(real64) function loss_scale(self)
    class(aliquot_engine), intent(in) :: self
    call finish(aliquot_c_loss_scale(self%c_handle(), loss_scale))
  end function

  integer(int64) function step_count(self)
    class(aliquot_engine), intent(in) :: self
    call finish(aliquot_c_step_count(self%c_handle(), step_count))
  end function

  ! State -------------------------------------------------------------------------------------------------------------

  subroutine read_1(self, parameter, values, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: parameter
    real(real32), intent(inout) :: values(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_read(self%c_handle(), trim(parameter) // c_null_char, size(values, kind=c_int64_t), values), &
        stat, errmsg)
  end subroutine

  subroutine read_2(self, parameter, values, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: parameter
    real(real32), intent(inout) :: values(:, :)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_read(self%c_handle(), trim(parameter) // c_null_char, size(values, kind=c_int64_t), values), &
        stat, errmsg)
  end subroutine

  subroutine read_3(self, parameter, values, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: parameter
    real(real32), intent(inout) :: values(:, :, :)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_read(self%c_handle(), trim(parameter) // c_null_char, size(values, kind=c_int64_t), values), &
        stat, errmsg)
  end subroutine

  subroutine read_4(self, parameter, values, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: parameter
    real(real32), intent(inout) :: values(:, :, :, :)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_read(self%c_handle(), trim(parameter) // c_null_char, size(values, kind=c_int64_t), values), &
        stat, errmsg)
  end subroutine

  subroutine check_copies(self, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_check_copies(self%c_handle()), stat, errmsg)
  end subroutine

  ! Saves to directory/step-STEP, then deletes all but the newest `keep` checkpoints. 0, the default, keeps all.
  subroutine save_checkpoint(self, directory, keep, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: directory
    integer, intent(in), optional :: keep
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(c_int) :: kept
    kept = 0
    if (present(keep)) kept = int(keep, c_int)
    call finish(aliquot_c_save(self%c_handle(), trim(directory) // c_null_char, kept), stat, errmsg)
  end subroutine

  subroutine load(self, path, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: path
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_load(self%c_handle(), trim(path) // c_null_char), stat, errmsg)
  end subroutine

  ! Loads the newest valid checkpoint. `found` is false if the directory has none, and unchanged after an error.
  subroutine load_newest(self, directory, found, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: directory
    logical, intent(inout), optional :: found
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(c_int) :: number, status
    number = 0
    status = aliquot_c_load_newest(self%c_handle(), trim(directory) // c_null_char, number)
    if (present(found) .and. status == aliquot_done) found = number /= 0
    call finish(status, stat, errmsg)
  end subroutine

  subroutine load_weights(self, path, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: path
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_load_weights(self%c_handle(), trim(path) // c_null_char), stat, errmsg)
  end subroutine

  ! Scalars -----------------------------------------------------------------------------------------------------------

  subroutine set_scalar_int32(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: name
    integer(int32), intent(in) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call self%set_scalar_int64(name, int(value, int64), stat, errmsg)
  end subroutine

  recursive subroutine set_scalar_int64(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call self%set_scalar_int64s(name, [value], stat, errmsg)
  end subroutine

  subroutine set_scalar_int64s(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: value(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_set_scalar_integers(self%c_handle(), trim(name) // c_null_char, &
        size(value, kind=c_int64_t), value), stat, errmsg)
  end subroutine

  recursive subroutine set_scalar_real64(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: name
    real(real64), intent(in) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call self%set_scalar_real64s(name, [value], stat, errmsg)
  end subroutine

  subroutine set_scalar_real64s(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: name
    real(real64), intent(in) :: value(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_set_scalar_reals(self%c_handle(), trim(name) // c_null_char, &
        size(value, kind=c_int64_t), value), stat, errmsg)
  end subroutine

  subroutine set_scalar_text(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(inout) :: self
    character(len=*), intent(in) :: name, value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_set_scalar_text(self%c_handle(), trim(name) // c_null_char, trim(value) // c_null_char), &
        stat, errmsg)
  end subroutine

  recursive subroutine get_scalar_int32(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: name
    integer(int32), intent(inout) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(int64) :: long_value
    character(len=24) :: number
    long_value = value
    call self%get_scalar_int64(name, long_value, stat, errmsg)
    if (abs(long_value) > huge(value)) then
      write (number, '(i0)') long_value
      call finish(aliquot_usage, stat, errmsg, 'the scalar ' // trim(name) // ' is ' // trim(number) // &
          ': expected an integer of 32 bits')
      return
    end if
    value = int(long_value, int32)
  end subroutine

  recursive subroutine get_scalar_int64(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: name
    integer(int64), intent(inout) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(int64) :: values(1)
    integer(c_int64_t) :: count
    integer(c_int) :: status
    status = aliquot_c_scalar_integers(self%c_handle(), trim(name) // c_null_char, 1_c_int64_t, values, count)
    call finish_one_value(name, status, count, stat, errmsg)
    if (status == aliquot_done .and. count == 1) value = values(1)
  end subroutine

  ! Reports the status of a call that got a scalar of one value.
  subroutine finish_one_value(name, status, count, stat, errmsg)
    character(len=*), intent(in) :: name
    integer(c_int), intent(in) :: status
    integer(c_int64_t), intent(in) :: count
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    if (status /= aliquot_done .or. count == 1) then
      call finish(status, stat, errmsg)
    else
      call finish(aliquot_usage, stat, errmsg, 'the scalar ' // trim(name) // ' is an empty list: expected one value')
    end if
  end subroutine

  ! Elements beyond the number of values keep their values.
  subroutine get_scalar_int64s(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: name
    integer(int64), intent(inout) :: value(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_scalar_integers(self%c_handle(), trim(name) // c_null_char, size(value, kind=c_int64_t), &
        value), stat, errmsg)
  end subroutine

  recursive subroutine get_scalar_real64(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: name
    real(real64), intent(inout) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    real(real64) :: values(1)
    integer(c_int64_t) :: count
    integer(c_int) :: status
    status = aliquot_c_scalar_reals(self%c_handle(), trim(name) // c_null_char, 1_c_int64_t, values, count)
    call finish_one_value(name, status, count, stat, errmsg)
    if (status == aliquot_done .and. count == 1) value = values(1)
  end subroutine

  subroutine get_scalar_real64s(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: name
    real(real64), intent(inout) :: value(:)
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    call finish(aliquot_c_scalar_reals(self%c_handle(), trim(name) // c_null_char, size(value, kind=c_int64_t), &
        value), stat, errmsg)
  end subroutine

  subroutine get_scalar_text(self, name, value, stat, errmsg)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: name
    character(len=:), allocatable, intent(inout) :: value
    integer, intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(c_ptr) :: text
    integer(c_int) :: status
    status = aliquot_c_scalar_text(self%c_handle(), trim(name) // c_null_char, text)
    if (status == aliquot_done) value = text_of(text)
    call finish(status, stat, errmsg)
  end subroutine

  logical function has_scalar(self, name)
    class(aliquot_engine), intent(in) :: self
    character(len=*), intent(in) :: name
    integer(c_int) :: present_flag
    call finish(aliquot_c_has_scalar(self%c_handle(), trim(name) // c_null_char, present_flag))
    has_scalar = present_flag /= 0
  end function

end module
