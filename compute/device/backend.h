/* Calls through the backend's table, which cgo cannot make by itself. */
#ifndef MILLRACE_BACKEND_H
#define MILLRACE_BACKEND_H

#include <stdlib.h>

#include "millrace_kernels.h"
#if __has_include("kernels_id.h")
#include "kernels_id.h" /* changes when the static library does, so that Go links anew */
#else
#define MILLRACE_KERNELS_ID ""
#endif

static inline int32_t mr_device_open(const mr_backend* b, const mr_device_config* c,
                                     mr_device** out, mr_error* e) {
  return b->device_open(c, out, e);
}
static inline void mr_device_close(const mr_backend* b, mr_device* d) { b->device_close(d); }
static inline int32_t mr_device_get_info(const mr_backend* b, mr_device* d, mr_device_info* out,
                                         mr_error* e) {
  return b->device_info(d, out, e);
}
static inline int32_t mr_device_run_measure(const mr_backend* b, mr_device* d, mr_measurement* out,
                                            mr_error* e) {
  return b->device_measure(d, out, e);
}
static inline int32_t mr_program_load(const mr_backend* b, mr_device* d, const mr_program_desc* p,
                                      mr_program** out, mr_error* e) {
  return b->program_load(d, p, out, e);
}
static inline void mr_program_unload(const mr_backend* b, mr_program* p) { b->program_unload(p); }
static inline int32_t mr_program_get_info(const mr_backend* b, mr_program* p, mr_program_info* out,
                                          mr_error* e) {
  return b->program_info(p, out, e);
}
static inline int32_t mr_program_get_packed(const mr_backend* b, mr_program* p, int32_t index,
                                            mr_span* out, mr_error* e) {
  return b->program_packed(p, index, out, e);
}
static inline int32_t mr_program_get_numerics(const mr_backend* b, mr_program* p, const char** out,
                                              mr_error* e) {
  return b->program_numerics(p, out, e);
}
static inline int32_t mr_program_run(const mr_backend* b, mr_program* p, const mr_step* s,
                                     mr_error* e) {
  return b->program_run(p, s, e);
}
static inline int32_t mr_program_get_logits(const mr_backend* b, mr_program* p, int32_t row,
                                            float* out, mr_error* e) {
  return b->program_logits(p, row, out, e);
}
static inline int32_t mr_program_draw_tokens(const mr_backend* b, mr_program* p,
                                             const mr_draw* draws, int32_t n, const uint32_t* masks,
                                             int32_t n_masks, int32_t* tokens, mr_error* e) {
  return b->program_draw(p, draws, n, masks, n_masks, tokens, e);
}
static inline int32_t mr_program_start_step(const mr_backend* b, mr_program* p, const mr_step* s,
                                            const mr_draw* draws, mr_error* e) {
  return b->program_start(p, s, draws, e);
}
static inline int32_t mr_program_get_drawn(const mr_backend* b, mr_program* p, int32_t* tokens,
                                           int32_t n, mr_error* e) {
  return b->program_drawn(p, tokens, n, e);
}
static inline int32_t mr_kv_reserve(const mr_backend* b, mr_program* p, int32_t slabs,
                                    mr_error* e) {
  return b->kv_reserve(p, slabs, e);
}
static inline int32_t mr_kv_reserve_file(const mr_backend* b, mr_program* p, int32_t slabs,
                                         int32_t file, uint64_t offset, mr_error* e) {
  return b->kv_reserve_file(p, slabs, file, offset, e);
}
static inline int32_t mr_region_create(const mr_backend* b, mr_program* p, int32_t slabs,
                                       mr_region** out, mr_error* e) {
  return b->region_create(p, slabs, out, e);
}
static inline int32_t mr_region_map(const mr_backend* b, mr_region* r, int32_t index,
                                    const int32_t* slabs, int32_t n, mr_error* e) {
  return b->region_map(r, index, slabs, n, e);
}
static inline int32_t mr_region_unmap(const mr_backend* b, mr_region* r, int32_t index, int32_t n,
                                      mr_error* e) {
  return b->region_unmap(r, index, n, e);
}
static inline void mr_region_destroy(const mr_backend* b, mr_region* r) { b->region_destroy(r); }
static inline int32_t mr_slab_copy(const mr_backend* b, mr_program* p, int32_t from, int32_t to,
                                   int32_t tokens, mr_error* e) {
  return b->slab_copy(p, from, to, tokens, e);
}
static inline int32_t mr_slab_read(const mr_backend* b, mr_program* p, int32_t slab, void* to,
                                   mr_error* e) {
  return b->slab_read(p, slab, to, e);
}
static inline int32_t mr_slab_write(const mr_backend* b, mr_program* p, int32_t slab,
                                    const void* from, mr_error* e) {
  return b->slab_write(p, slab, from, e);
}

#endif
