// The C ABI over a backend's Device.
#ifndef MILLRACE_EXEC_ABI_HPP
#define MILLRACE_EXEC_ABI_HPP

#include <memory>
#include <vector>

#include "exec/backend.hpp"
#include "exec/ranks.hpp"
#include "millrace_kernels.h"

namespace millrace {

// Makes a backend's device, or one rank of it, whose threads the config has then. Throws Error.
using OpenDevice = std::unique_ptr<Device> (*)(const mr_device_config&, int rank);

// Where the ranks of a device run, of a config with at least 2; throws Error.
using PlaceRanks = std::vector<RankPlace> (*)(const mr_device_config&);

// A device of one rank, or where places is not null of as many as the config has, each opened with its share of the threads.
int32_t open_device(OpenDevice open, const mr_device_config* config, mr_device** out,
                    mr_error* error, PlaceRanks places = nullptr) noexcept;

// The backend table, but for device_open.
mr_backend backend_table(const char* name, decltype(mr_backend::device_open) device_open);

}  // namespace millrace

#endif
