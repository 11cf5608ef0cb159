#include "exec/abi.hpp"

#include <cstdio>
#include <new>
#include <system_error>

#include "exec/error.hpp"
#include "exec/executor.hpp"

struct mr_device {
  std::unique_ptr<millrace::Device> device;
};

struct mr_program : millrace::Executor {
  using Executor::Executor;
};

namespace millrace {
namespace {

int32_t report(mr_error* error, mr_status status, const char* message) noexcept {
  if (error != nullptr) {
    error->status = status;
    std::snprintf(error->message, sizeof error->message, "%s", message);
  }
  return status;
}

// Runs a call of the ABI. No exception leaves.
template <class F>
int32_t guarded(mr_error* error, F&& call) noexcept {
  try {
    call();
    return report(error, MR_OK, "");
  } catch (const Error& e) {
    return report(error, e.status(), e.what());
  } catch (const std::bad_alloc&) {
    return report(error, MR_NO_MEMORY, "out of memory");
  } catch (const std::system_error& e) {
    return report(error, MR_DEVICE, e.what());
  } catch (const std::exception& e) {
    return report(error, MR_DEVICE, e.what());
  } catch (...) {
    return report(error, MR_DEVICE, "unknown exception");
  }
}

template <class... P>
void need(const P*... pointers) {
  if (((pointers == nullptr) || ...)) fail(MR_INVALID, "a null pointer, expected an object");
}

void device_close(mr_device* device) { delete device; }

int32_t device_info(mr_device* device, mr_device_info* out, mr_error* error) {
  return guarded(error, [&] {
    need(device, out);
    *out = {};
    device->device->info(*out);
  });
}

int32_t device_measure(mr_device* device, mr_measurement* out, mr_error* error) {
  return guarded(error, [&] {
    need(device, out);
    *out = device->device->measure();
  });
}

int32_t program_load(mr_device* device, const mr_program_desc* desc, mr_program** out,
                     mr_error* error) {
  return guarded(error, [&] {
    need(device, desc, out);
    *out = new mr_program(*device->device, *desc);
  });
}

void program_unload(mr_program* program) { delete program; }

int32_t program_info(mr_program* program, mr_program_info* out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    program->info(*out);
  });
}

int32_t program_packed(mr_program* program, int32_t index, mr_span* out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    *out = program->packed(index);
  });
}

int32_t program_numerics(mr_program* program, const char** out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    *out = program->numerics();
  });
}

int32_t program_run(mr_program* program, const mr_step* step, mr_error* error) {
  return guarded(error, [&] {
    need(program, step);
    program->run(*step);
  });
}

int32_t kv_reserve(mr_program* program, int32_t slabs, mr_error* error) {
  return guarded(error, [&] {
    need(program);
    program->reserve(slabs, {});
  });
}

int32_t kv_reserve_file(mr_program* program, int32_t slabs, int32_t file, uint64_t offset,
                        mr_error* error) {
  return guarded(error, [&] {
    need(program);
    if (file < 0) fail(MR_INVALID, "file %d, expected an open one", file);
    program->reserve(slabs, {file, offset});
  });
}

int32_t region_create(mr_program* program, int32_t slabs, mr_region** out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    *out = new mr_region(program->pool(), slabs);
  });
}

int32_t region_map(mr_region* region, int32_t index, const int32_t* slabs, int32_t n,
                   mr_error* error) {
  return guarded(error, [&] {
    need(region, slabs);
    region->map(index, slabs, n);
  });
}

int32_t region_unmap(mr_region* region, int32_t index, int32_t n, mr_error* error) {
  return guarded(error, [&] {
    need(region);
    region->unmap(index, n);
  });
}

void region_destroy(mr_region* region) { delete region; }

int32_t slab_copy(mr_program* program, int32_t from, int32_t to, int32_t tokens, mr_error* error) {
  return guarded(error, [&] {
    need(program);
    program->pool()->copy(from, to, tokens);
  });
}

int32_t slab_read(mr_program* program, int32_t slab, void* to, mr_error* error) {
  return guarded(error, [&] {
    need(program, to);
    program->pool()->read(slab, to);
  });
}

int32_t slab_write(mr_program* program, int32_t slab, const void* from, mr_error* error) {
  return guarded(error, [&] {
    need(program, from);
    program->pool()->write(slab, from);
  });
}

int32_t program_logits(mr_program* program, int32_t row, float* out, mr_error* error) {
  return guarded(error, [&] {
    need(program, out);
    program->read_logits(row, out);
  });
}

}  // namespace

int32_t open_device(OpenDevice open, const mr_device_config* config, mr_device** out,
                    mr_error* error) noexcept {
  return guarded(error, [&] {
    need(config, out);
    *out = new mr_device{open(*config)};
  });
}

mr_backend backend_table(const char* name, decltype(mr_backend::device_open) device_open) {
  return {MR_ABI_VERSION,   name,           device_open,    device_close,  device_info,
          device_measure,   program_load,   program_unload, program_info,  program_packed,
          program_numerics, program_run,    kv_reserve,     region_create, region_map,
          region_unmap,     region_destroy, slab_copy,      slab_read,     slab_write,
          kv_reserve_file,  program_logits};
}

}  // namespace millrace
