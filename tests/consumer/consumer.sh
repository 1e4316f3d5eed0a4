#!/usr/bin/env bash
# consumer.sh STYLE BUILD_DIR: builds and runs tests/consumer/main.cpp and, over the C ABI, examples/c_forward.c against
# moxie as one kind of user does.
#   install            writes the installed tree that find_package and pkg_config use, then moves it
#   find_package       CMake user of the installed tree, shared and static
#   pkg_config         user without CMake, shared and static
#   add_subdirectory   CMake user of the source tree
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
style=$1
build=$2
work=$build/consumer
prefix=$work/prefix
cxx=${CXX:-c++}
cc=${CC:-cc}

run() {
  echo "+ $*"
  "$@"
}

# check_c SHARED STATIC: both programs compute the same bits from a checkpoint.
check_c() {
  rm -rf "$work/model.$style"
  "$build/bin/moxie" synth "$work/model.$style" --model tiny -q
  run "$1" "$work/model.$style" >"$work/shared.$style"
  run "$2" "$work/model.$style" >"$work/static.$style"
  cat "$work/shared.$style"
  grep -q 'checksum [0-9a-f]' "$work/shared.$style"
  diff <(tail -n 1 "$work/shared.$style") <(tail -n 1 "$work/static.$style")
}

case $style in
  install)
    rm -rf "$work/written" "$prefix"
    run cmake --install "$build" --prefix "$work/written" >/dev/null
    # What an installed tree says about its own place has to be relative.
    mv "$work/written" "$prefix"
    if grep -rIl -e "$work/written" -e "$build" "$prefix"; then
      echo "the files above name the build machine's folders"
      exit 1
    fi
    run "$prefix/bin/moxie" --version
    ;;
  find_package)
    rm -rf "$work/find_package"
    run cmake -G Ninja -S "$here/find_package" -B "$work/find_package" \
      -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
    run cmake --build "$work/find_package"
    run "$work/find_package/use_moxie"
    run "$work/find_package/use_moxie_static"
    check_c "$work/find_package/c_moxie" "$work/find_package/c_moxie_static"
    ;;
  pkg_config)
    mkdir -p "$work/pkg_config"
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name moxie.pc)")
    export PKG_CONFIG_PATH
    libdir=$(pkg-config --variable=libdir moxie)
    read -ra cflags < <(pkg-config --cflags moxie)
    read -ra libs < <(pkg-config --libs moxie)
    read -ra private_libs < <(pkg-config --libs --static moxie)
    run "$cxx" -std=c++20 "${cflags[@]}" "$here/main.cpp" "${libs[@]}" -o "$work/pkg_config/shared"
    LD_LIBRARY_PATH=$libdir run "$work/pkg_config/shared"
    # -l:libmoxie.a is how a linker is told to take the archive when a shared library lies beside it.
    run "$cxx" -std=c++20 "${cflags[@]}" "$here/main.cpp" "${private_libs[@]/#-lmoxie/-l:libmoxie.a}" \
      -o "$work/pkg_config/static"
    run "$work/pkg_config/static"
    # The C compiler links too: what the C++ inside needs is said by moxie.pc.
    c_flags=(-std=c11 -Wall -Wextra -Werror "${cflags[@]}" "$here/../../examples/c_forward.c")
    run "$cc" "${c_flags[@]}" "${libs[@]}" -lm "-Wl,-rpath,$libdir" -o "$work/pkg_config/c_shared"
    run "$cc" "${c_flags[@]}" "${private_libs[@]/#-lmoxie/-l:libmoxie.a}" -lm -o "$work/pkg_config/c_static"
    check_c "$work/pkg_config/c_shared" "$work/pkg_config/c_static"
    ;;
  add_subdirectory)
    # Kept between runs: this user compiles all of moxie.
    run cmake -G Ninja -S "$here/add_subdirectory" -B "$work/add_subdirectory" \
      -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DMOXIE_SOURCE_DIR="$here/../.." >/dev/null
    run cmake --build "$work/add_subdirectory"
    run "$work/add_subdirectory/use_moxie"
    run "$work/add_subdirectory/use_moxie_static"
    check_c "$work/add_subdirectory/c_moxie" "$work/add_subdirectory/c_moxie_static"
    ;;
  *)
    echo "consumer.sh: no style '$style'" >&2
    exit 2
    ;;
esac
