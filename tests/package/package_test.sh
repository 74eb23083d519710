#!/usr/bin/env bash
# tests/package/package_test.sh TREE BUILD PREFIX CASE: uses an installed Aliquot from a folder outside the tree. The
# case install runs first and fills PREFIX from BUILD; the other cases use PREFIX.
set -euo pipefail
tree=$1 build=$2 prefix=$3 case=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "$case: $*" >&2 && exit 1; }

# contains TEXT PART: fails unless the text contains the part.
contains() { if [[ $1 != *"$2"* ]]; then fail "expected '$2' in: $1"; fi; }

# configure_consumer ARGUMENTS...: copies the consumer outside the tree and configures it with these cmake arguments.
configure_consumer() {
  cp -r "$tree/tests/package/consumer" "$scratch/source"
  cp "$tree"/apps/examples/{mlp.c,mlp.f90,surrogate_mpi.cpp,surrogate_model.h} "$scratch/source"
  cmake -S "$scratch/source" -B "$scratch/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" \
    >"$scratch/configure.log" 2>&1 ||
    { cat "$scratch/configure.log" && fail "the consumer does not configure"; }
}

# runs COMMAND...: checks that the consumer finishes training, and catches the library's exception by its type.
runs() {
  local said
  said=$("$@") || fail "the consumer exited with code $?: $said"
  [[ $said == *"y = 2.000 x + 1.000"*"told: "* ]] || fail "unexpected output of the consumer: $said"
}

build_and_run() {
  cmake --build "$scratch/build" >"$scratch/build.log" 2>&1 ||
    { cat "$scratch/build.log" && fail "the consumer does not build"; }
  runs "$scratch/build/consumer"
}

# Checks that configuring the consumer did not search for Aliquot's own dependencies.
found_nothing() {
  if grep -E '^(HDF5|MPI|Boost|fmt|nlohmann_json|CUDA|NCCL)[A-Za-z0-9_]*:' "$scratch/build/CMakeCache.txt"; then
    fail "the consumer searched for the packages above"
  fi
}

# same_losses PROGRAM: checks that the program prints the losses of the C++ example, in the format of its language.
same_losses() {
  local run words
  for run in "1 0 40" "2 3 40"; do
    read -ra words <<<"$run"
    paste <("$1" "${words[@]}") <("$build/examples/mlp" "${words[@]}") >"$scratch/both"
    awk '$2 != $6 || $4 + 0 != $8 + 0 { bad = 1; print } END { exit bad || NR != 2 }' "$scratch/both" ||
      fail "the losses differ from those of the C++ program"
  done
}

# skip_without PROGRAM: ends this test, as skipped, if the program is missing.
skip_without() { if ! command -v "$1" >/dev/null; then echo "$1 is not installed" && exit 77; fi; }

public_headers() { (cd "$prefix/include" && find aliquot -name '*.h' | LC_ALL=C sort); }

case $case in
  install)
    rm -rf "$prefix"
    cmake --install "$build" --prefix "$prefix" >/dev/null
    "$prefix/bin/aliquot" --version
    for file in bash-completion/completions/aliquot zsh/site-functions/_aliquot fish/vendor_completions.d/aliquot.fish \
      man/man1/aliquot.1 man/man1/aliquot-train.1; do
      if [ ! -s "$prefix/share/$file" ]; then fail "$file is missing or empty"; fi
    done
    ;;
  shared)
    configure_consumer -DHOW=shared "-DCMAKE_PREFIX_PATH=$prefix"
    found_nothing
    build_and_run
    contains "$(ldd "$scratch/build/consumer")" "$prefix/lib"
    ;;
  static)
    configure_consumer -DHOW=static "-DCMAKE_PREFIX_PATH=$prefix"
    found_nothing
    build_and_run
    if ldd "$scratch/build/consumer" | grep libaliquot; then fail "the consumer is linked with the shared library"; fi
    ;;
  version)
    # Minor versions may differ in their interfaces, so find_package() rejects a minor version that was not requested.
    cp -r "$tree/tests/package/consumer" "$scratch/source"
    for version in 0.0 0.2 1.0; do
      if said=$(cmake -S "$scratch/source" -B "$scratch/build-$version" -G Ninja "-DCMAKE_PREFIX_PATH=$prefix" \
        "-DVERSION=$version" 2>&1); then
        fail "find_package() accepted version $version"
      fi
      contains "$said" "requested version"
    done
    ;;
  C | Fortran)
    if [ "$case" = Fortran ]; then skip_without gfortran; fi
    configure_consumer "-DHOW=$case" "-DCMAKE_PREFIX_PATH=$prefix"
    found_nothing
    cmake --build "$scratch/build" >"$scratch/build.log" 2>&1 ||
      { cat "$scratch/build.log" && fail "the consumer does not build"; }
    same_losses "$scratch/build/consumer"
    if [ "$case" = Fortran ]; then
      # The folder above has found the library, so its target does not belong to the folder that needs the component.
      said=$(cmake -S "$scratch/source" -B "$scratch/other" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        "-DCMAKE_PREFIX_PATH=$prefix" -DHOW=Fortran-in-a-folder 2>&1 && cmake --build "$scratch/other" 2>&1) ||
        fail "the component fortran in a folder: $said"
      same_losses "$scratch/other/folder/consumer"
    fi
    if [ "$case" = C ]; then
      said=$(cmake -S "$scratch/source" -B "$scratch/other" -G Ninja "-DCMAKE_PREFIX_PATH=$prefix" \
        -DHOW=C-with-component-fortran 2>&1) && fail "find_package() found the component fortran without the language"
      contains "$(tr -s ' \n' ' ' <<<"$said")" "the component fortran needs the language Fortran"
    fi
    ;;
  Fortran-pkg-config)
    skip_without gfortran
    skip_without pkg-config
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    if ! pkg-config aliquot-fortran; then echo "skipped: this build has no Fortran module" && exit 77; fi
    read -ra flags < <(pkg-config --cflags --libs aliquot-fortran)
    flags+=("-Wl,-rpath,$(pkg-config --variable=libdir aliquot)")
    mkdir "$scratch/installed" "$scratch/compiled"
    (cd "$scratch/installed" &&
      gfortran -O1 -ffp-contract=off -frecursive "$tree/apps/examples/mlp.f90" -o consumer "${flags[@]}")
    same_losses "$scratch/installed/consumer"
    # Another compiler compiles the installed sources of the module. Its .mod files come before the installed ones.
    read -ra sources < <(pkg-config --variable=sources aliquot-fortran)
    read -ra flags < <(pkg-config --libs aliquot)
    flags+=("-Wl,-rpath,$(pkg-config --variable=libdir aliquot)")
    (cd "$scratch/compiled" &&
      gfortran -O1 -ffp-contract=off -frecursive "${sources[@]}" "$tree/apps/examples/mlp.f90" -o consumer "${flags[@]}")
    same_losses "$scratch/compiled/consumer"
    ;;
  MPI)
    # Worlds from communicators, in C and C++. The header aliquot/mpi.h compiles alone in both.
    skip_without mpirun
    skip_without mpicc
    if ! grep -q '^MPI|yes' "$build/features.txt"; then echo "skipped: this build has no MPI" && exit 77; fi
    for compiler in "mpicc -x c" "mpicxx -x c++ -std=c++20"; do
      read -ra words <<<"$compiler"
      echo '#include <aliquot/mpi.h>' |
        "${words[@]}" -fsyntax-only -Wall -Wextra -Wpedantic -Werror "-I$prefix/include" - ||
        fail "aliquot/mpi.h does not compile alone"
    done
    configure_consumer -DHOW=MPI "-DCMAKE_PREFIX_PATH=$prefix"
    cmake --build "$scratch/build" >"$scratch/build.log" 2>&1 ||
      { cat "$scratch/build.log" && fail "the consumer does not build"; }
    said=$(mpirun -n 4 --oversubscribe "$scratch/build/consumer")
    contains "$said" "3 ranks, sum 6"
    contains "$said" "told: World::from_mpi(): the communicator with the Fortran handle"
    contains "$(mpirun -n 3 --oversubscribe "$scratch/build/surrogate_mpi" 20)" "step 20 loss 0.00"
    ;;
  pkg-config)
    skip_without pkg-config
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    read -ra flags < <(pkg-config --cflags --libs aliquot)
    ${CXX:-c++} -std=c++20 -O1 "$tree/tests/package/consumer/main.cpp" -o "$scratch/consumer" "${flags[@]}"
    LD_LIBRARY_PATH=$prefix/lib runs "$scratch/consumer"
    # With the rpath that docs/building.md shows, the program finds the library without a variable.
    flags+=("-Wl,-rpath,$(pkg-config --variable=libdir aliquot)")
    ${CXX:-c++} -std=c++20 -O1 "$tree/tests/package/consumer/main.cpp" -o "$scratch/consumer" "${flags[@]}"
    runs env -u LD_LIBRARY_PATH "$scratch/consumer"
    # An installed example compiles in its folder.
    ${CXX:-c++} -std=c++20 -O1 "$(find "$prefix/share" -name transformer_sharded.cpp)" \
      -o "$scratch/example" "${flags[@]}"
    ;;
  subdirectory | fetch)
    # Configures the consumer, and compiles only its own object file. The long tests also compile the library.
    configure_consumer "-DHOW=$case" "-DALIQUOT_TREE=$tree" -DALIQUOT_CUDA=OFF
    if grep -E '^Boost_DIR:' "$scratch/build/CMakeCache.txt"; then
      fail "the consumer searched for Boost, which only the command requires"
    fi
    if grep -E '^CMAKE_[A-Z]+_LINK_(NO_)?PIE_SUPPORTED' "$scratch/build/CMakeCache.txt"; then
      fail "Aliquot changed how the consumer's own programs are linked"
    fi
    # The build has a rule for each header copy. So after a change of a header, one build copies it and recompiles the
    # sources that include it.
    for header in engine/engine.h checkpoint/io_lane.h optim/update_loop.h; do
      contains "$(ninja -C "$scratch/build" -t query "aliquot/public/aliquot/$header" 2>&1 ||
        ninja -C "$scratch/build" -t query "_deps/aliquot-build/public/aliquot/$header")" "input: CUSTOM_COMMAND"
    done
    cmake --build "$scratch/build" --target CMakeFiles/consumer.dir/main.cpp.o >"$scratch/build.log" 2>&1 ||
      { cat "$scratch/build.log" && fail "the consumer does not compile"; }
    ;;
  *-whole)
    configure_consumer "-DHOW=${case%-whole}" "-DALIQUOT_TREE=$tree" -DALIQUOT_CUDA=OFF
    build_and_run
    ;;
  headers)
    # Each public header compiles on its own. The test "CUDA" below compiles *_cuda.h, and the test "MPI" mpi.h. If the
    # build has LibTorch, tests/libtorch/ compiles the headers for LibTorch.
    # shellcheck disable=SC2016  # the inner shell expands it
    public_headers | grep -vE '_cuda[.]h|aliquot/(mpi[.]h|torch[.]h|libtorch/)' |
      xargs -P "$(nproc)" -I{} sh -c 'echo "#include <{}>" |
      ${CXX:-c++} -x c++ -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -I"$0/include" - ||
      { echo "{} does not compile alone" && exit 255; }' "$prefix"
    private='MPI_|nccl[A-Z]|cuda[A-Z].*\(|H5[A-Z]?[a-z]*_|#include <(mpi|cuda|nccl|hdf5|fmt|nlohmann|boost)'
    if (cd "$prefix/include" && grep -rnE --include='*.h' --exclude='*_cuda.h' --exclude=mpi.h "$private" aliquot |
      grep -vE ':[0-9]+: *(//|/?[*])'); then
      fail "the public headers above use a dependency of Aliquot"
    fi
    ;;
  CUDA)
    # Compiles each *_cuda.h alone, and a user's update rule for GPUs. Running the program needs no GPU.
    nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
    if ! command -v "${nvcc:-none}" >/dev/null; then echo "skipped: this build has no CUDA backend" && exit 77; fi
    flags=(-std=c++20 --fmad=false -Xcompiler=-ffp-contract=off -arch=sm_90 "-I$prefix/include")
    for header in $(public_headers | grep '_cuda[.]h'); do
      echo "#include <$header>" >"$scratch/alone.cu"
      "$nvcc" "${flags[@]}" -c "$scratch/alone.cu" -o "$scratch/alone.o" || fail "$header does not compile alone"
    done
    "$nvcc" "${flags[@]}" "$tree/tests/package/consumer/rule.cu" -o "$scratch/rule" "-L$prefix/lib" -laliquot
    contains "$(LD_LIBRARY_PATH=$prefix/lib "$scratch/rule")" "signum"
    ;;
  symbols)
    nm -DC --defined-only "$prefix"/lib*/libaliquot.so >"$scratch/symbols"
    if grep -vE ' (aliquot::|aliquot_|(typeinfo|typeinfo name|vtable|VTT) for aliquot::)' "$scratch/symbols" |
      grep -vE ' A '; then
      fail "libaliquot.so exports the symbols above, which do not belong to aliquot"
    fi
    for inside in Executor HostView BoardClient StagedWriter Weights update_avx2; do
      if grep -E "aliquot::$inside(::|\()" "$scratch/symbols"; then
        fail "libaliquot.so exports the internal symbols above"
      fi
    done
    version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=\([0-9]*\.[0-9]*\)\..*/\1/p' "$build/CMakeCache.txt")
    for symbol in "aliquot::Engine::step()" aliquot_step; do
      grep -qF " T $symbol@@ALIQUOT_$version" "$scratch/symbols" ||
        fail "libaliquot.so does not export $symbol with the version ALIQUOT_$version"
    done
    ;;
  packages)
    # Packages the existing build folder, without compiling.
    (cd "$scratch" && cpack --config "$build/CPackConfig.cmake" -B "$scratch/out" >"$scratch/log" 2>&1) ||
      { cat "$scratch/log" && fail "cpack failed"; }
    if command -v file >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
      deb=$(echo "$scratch"/out/*.deb)
      contains "$(dpkg-deb --field "$deb" Package Version Depends)" "libhdf5"
      contains "$(dpkg-deb --contents "$deb")" "./usr/include/aliquot/aliquot.h"
    else
      echo "skipped: .deb, which requires the packages file and dpkg-dev"
    fi
    contains "$(tar -tzf "$scratch"/out/*.tar.gz)" "lib/cmake/aliquot/aliquotConfig.cmake"
    du -h --apparent-size "$scratch"/out/aliquot* | sed "s|$scratch/out/||"
    ;;
  *) fail "unknown case" ;;
esac
