// The library is built without NVRTC, and so holds no PTX.
#include "platform/compiler.hpp"

namespace millrace::gpu {

std::span<const EmbeddedCode> embedded_code() { return {}; }

const char* embedded_by() { return ""; }

}  // namespace millrace::gpu
