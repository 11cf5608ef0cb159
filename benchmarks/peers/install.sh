#!/usr/bin/env bash
# Installs the peers into build/peers: a venv with the Python packages of requirements.txt, and llama.cpp
# with its server, compiled for this CPU from the sources of llama-cpp-python, whose bindings load it.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
peers=$root/build/peers
llama=llama_cpp_python-0.3.36
pip=("$peers/venv/bin/pip" --quiet --disable-pip-version-check)

"$root/scripts/build/check-tools.sh" cxx cmake
mkdir -p "$peers"

if ! cmp -s "$here/requirements.txt" "$peers/requirements.txt"; then
  echo "peers: Python packages (several GB, once)"
  [ -x "$peers/venv/bin/pip" ] || python3 -m venv "$peers/venv"
  "${pip[@]}" install -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$peers/requirements.txt"
fi

if [ ! -e "$peers/$llama.installed" ]; then
  echo "peers: llama.cpp from $llama (about 10 minutes, once)"
  "${pip[@]}" install scikit-build-core
  "${pip[@]}" download --no-deps --no-binary :all: -d "$peers/sdist" "${llama%-*}==${llama##*-}"
  tar -xf "$peers/sdist/$llama.tar.gz" -C "$peers/sdist"
  # A release build for this CPU, as GGML_NATIVE's default has it, without what the benchmark does not need.
  cmake -S "$peers/sdist/$llama/vendor/llama.cpp" -B "$peers/llama" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DCMAKE_CXX_FLAGS="-include '$here/tile_config.h'" -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF >"$peers/llama.log"
  cmake --build "$peers/llama" --target llama llama-server --parallel "$(nproc)" >>"$peers/llama.log" 2>&1
  CMAKE_ARGS=-DLLAMA_BUILD=OFF "${pip[@]}" install "$peers/sdist/$llama"
  touch "$peers/$llama.installed"
fi
